// Numbers as people read them.

const GROUPED = new Intl.NumberFormat('en-US', {maximumFractionDigits: 0});

export const count = (value) => GROUPED.format(value);

// 512, 4.1K, 1M: tokens on axes and in tight places. Powers of two of tokens keep their usual names (131072 = 128K).
export function short(value) {
  const trim = (number) => String(Number(number.toFixed(number < 10 ? 1 : 0)));
  for (const [base, suffix] of [[1048576, 'M'], [1024, 'K']]) {
    if (value >= base && Number.isInteger(value / base)) return trim(value / base) + suffix;
  }
  if (value >= 999500) return trim(value / 1e6) + 'M';
  if (value >= 1000) return trim(value / 1000) + 'K';
  return Number.isInteger(value) ? String(value) : trim(value);
}

export function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}`;
}

export function seconds(value) {
  if (!Number.isFinite(value) || value < 0) return '–';
  if (value === 0) return '0 s';
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 10) return `${value.toFixed(2)} s`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const rate = (value) =>
  value >= 100 ? count(value) : value >= 1 ? value.toFixed(1) : value > 0 ? value.toFixed(2) : '0';

export function percent(fraction) {
  if (!Number.isFinite(fraction)) return '–';
  const value = fraction * 100;
  if (value > 0 && value < 0.01) return '< 0.01 %';
  if (value > 99.99 && value < 100) return '> 99.99 %';
  return `${value >= 10 ? value.toFixed(value >= 99 && value < 100 ? 2 : 1) : value.toFixed(2)} %`;
}

// A probability from 1 down to what only an exponent can say.
export function probability(value) {
  if (value === 0) return '0';
  if (value >= 0.001) return value.toPrecision(3);
  return value.toExponential(1).replace('e-', '·10⁻').replace(/⁻(\d+)/, (_, digits) => '⁻' + superscript(digits));
}

export const superscript = (digits) => [...String(digits)].map((c) => (c === '-' ? '⁻' : '⁰¹²³⁴⁵⁶⁷⁸⁹'[c])).join('');

export const signed = (value, digits = 3) => (value < 0 ? '−' : '') + Math.abs(value).toFixed(digits);
