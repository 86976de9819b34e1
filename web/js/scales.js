// Scales and ticks for the charts: pure functions.

import {short, superscript} from './format.js';

export function linearScale([d0, d1], [r0, r1]) {
  const span = d1 - d0 || 1;
  const map = (value) => r0 + ((value - d0) / span) * (r1 - r0);
  map.invert = (position) => d0 + ((position - r0) / (r1 - r0)) * span;
  map.domain = [d0, d1];
  map.range = [r0, r1];
  return map;
}

// A logarithmic axis on which the distance 0 has a place: position = log(1 + d).
export function distanceScale(maximum, range) {
  const inner = linearScale([0, Math.log1p(maximum)], range);
  const map = (d) => inner(Math.log1p(d));
  map.invert = (position) => Math.expm1(inner.invert(position));
  map.domain = [0, maximum];
  map.range = range;
  return map;
}

export function niceStep(span, wanted) {
  const raw = span / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const factor = [1, 2, 2.5, 5, 10].find((f) => f * power >= raw * 0.999);
  return factor * power;
}

export function linearTicks([low, high], wanted) {
  if (!(high > low)) return [low];
  const step = niceStep(high - low, wanted);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; ++k) ticks.push(k * step);
  return ticks;
}

// 0, 1, 10, 100 … up to the maximum, thinned out to what fits.
export function distanceTicks(maximum, wanted) {
  const ticks = [0];
  for (let d = 1; d <= maximum; d *= 10) ticks.push(d);
  while (ticks.length > Math.max(3, wanted)) {
    // Keep 0, and every other power counted from the largest.
    const powers = ticks.slice(1).reverse().filter((_, i) => i % 2 === 0).reverse();
    ticks.splice(1, ticks.length - 1, ...powers);
  }
  return ticks.map((value) => ({value, text: short(value)}));
}

// Decades of a logarithmic axis given in powers of ten.
export function decadeTicks([low, high], wanted) {
  const step = Math.max(1, Math.ceil((high - low) / Math.max(1, wanted)));
  const ticks = [];
  for (let power = Math.ceil(low / step) * step; power <= high; power += step) {
    ticks.push({value: power, text: power === 0 ? '1' : `10${superscript(power)}`});
  }
  return ticks;
}

// About `points` distances from 0 to n - 1, evenly spaced on the distance scale, each once.
export function sampleDistances(n, points, extra = []) {
  const chosen = new Set(extra.filter((d) => d >= 0 && d < n));
  const end = Math.log1p(n - 1);
  for (let k = 0; k < points; ++k) chosen.add(Math.min(n - 1, Math.round(Math.expm1((end * k) / (points - 1)))));
  return [...chosen].sort((a, b) => a - b);
}
