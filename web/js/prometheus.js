// Prometheus text into numbers, and what can be learnt from two readings of a histogram.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

function parseLabels(text) {
  const labels = {};
  for (const [, name, value] of (text ?? '').matchAll(LABEL)) {
    labels[name] = value.replace(/\\(.)/g, (_, c) => (c === 'n' ? '\n' : c));
  }
  return labels;
}

const toNumber = (text) => (text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text));

export class Metrics {
  #samples = new Map(); // name -> [{labels, value}]

  constructor(text) {
    for (const line of text.split('\n')) {
      if (line === '' || line.startsWith('#')) continue;
      const match = SAMPLE.exec(line);
      if (!match) continue;
      const sample = {labels: parseLabels(match[2]), value: toNumber(match[3])};
      const list = this.#samples.get(match[1]);
      if (list) list.push(sample);
      else this.#samples.set(match[1], [sample]);
    }
  }

  // The sum over all samples whose labels contain `labels`; 0 when there is none.
  value(name, labels = {}) {
    let sum = 0;
    for (const sample of this.#samples.get(name) ?? []) {
      if (Object.entries(labels).every(([key, text]) => sample.labels[key] === text)) sum += sample.value;
    }
    return sum;
  }

  // [{labels, value}]
  samples(name) {
    return this.#samples.get(name) ?? [];
  }

  has(name) {
    return this.#samples.has(name);
  }

  // {bounds, counts (cumulative), sum, count}
  histogram(name) {
    const buckets = (this.#samples.get(`${name}_bucket`) ?? [])
      .map((sample) => ({bound: toNumber(sample.labels.le), count: sample.value}))
      .sort((a, b) => a.bound - b.bound);
    return {
      bounds: buckets.map((b) => b.bound),
      counts: buckets.map((b) => b.count),
      sum: this.value(`${name}_sum`),
      count: this.value(`${name}_count`),
    };
  }
}

// What was observed between two readings. A smaller count means that the server was restarted.
export function histogramDelta(now, before) {
  if (!before || before.count > now.count || before.counts.length !== now.counts.length) return now;
  return {
    bounds: now.bounds,
    counts: now.counts.map((c, i) => c - before.counts[i]),
    sum: now.sum - before.sum,
    count: now.count - before.count,
  };
}

// Linear inside the bucket, as Prometheus' histogram_quantile; null without observations.
export function quantile(histogram, q) {
  const total = histogram.counts.at(-1) ?? 0;
  if (total <= 0) return null;
  const rank = q * total;
  const at = histogram.counts.findIndex((c) => c >= rank);
  const below = at > 0 ? histogram.counts[at - 1] : 0;
  const low = at > 0 ? histogram.bounds[at - 1] : 0;
  const high = histogram.bounds[at];
  if (!Number.isFinite(high)) return low;
  const inside = histogram.counts[at] - below;
  return inside > 0 ? low + ((high - low) * (rank - below)) / inside : high;
}

export const mean = (histogram) => (histogram.count > 0 ? histogram.sum / histogram.count : null);
