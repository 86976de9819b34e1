// The positional prior of BAM, as the server computes it (kernels/prior.h), in double precision.
//
//   mu = exp(thetaMu) - exp(-thetaMu);  distance d = i - j >= 0
//   scale_outside:  B(d) = -exp(alpha) * (|d + mu| + eps) ^ beta
//   scale_inside:   B(d) = -(|d + mu| * exp(alpha) + eps) ^ beta
//   SSMax:          B counts c = s * ln(n) times for a query that sees n keys (once without, or when ssmax_prior is off)

const FLOOR = -1e30;

export const mu = (thetaMu) => Math.exp(thetaMu) - Math.exp(-thetaMu);

// d -> B(d). `head` has alpha, beta, theta_mu; `model` has prior_form and prior_eps.
export function bamBias(head, model) {
  const scale = Math.exp(head.alpha);
  const offset = mu(head.theta_mu);
  const {beta} = head;
  const eps = model.prior_eps;
  if (model.prior_form === 'scale_inside') {
    return (d) => Math.max(FLOOR, -Math.pow(Math.abs(d + offset) * scale + eps, beta));
  }
  return (d) => Math.max(FLOOR, -scale * Math.pow(Math.abs(d + offset) + eps, beta));
}

// How often the prior counts for a query that sees n keys.
export function biasScale(head, model, n) {
  return model.ssmax && model.ssmax_prior ? head.seq_scale * Math.log(n) : 1;
}

// d -> the prior's part of the logit for a query that sees n keys.
export function bamLogit(head, model, n) {
  const bias = bamBias(head, model);
  const scale = biasScale(head, model, n);
  return (d) => scale * bias(d);
}

// ALiBi's slope of head k of n: a geometric series for powers of two, interleaved with the next one otherwise.
export function alibiSlope(k, n) {
  const series = (size, index) => 2 ** (-(2 ** -(Math.log2(size) - 3)) * (index + 1));
  const lower = 2 ** Math.floor(Math.log2(n));
  return k < lower ? series(lower, k) : series(2 * lower, 2 * (k - lower));
}

// SSMax does not scale ALiBi's bias.
export const alibiLogit = (slope) => (d) => -slope * d;
export const uniformLogit = () => () => 0;

// The prior as a probability over the distances 0 … n - 1, with nothing but the prior in the logits. The sum is over
// every distance; nothing is sampled.
export class Distribution {
  constructor(logit, n) {
    this.n = n;
    this.logit = logit;
    const weights = new Float64Array(n);
    let peak = -Infinity;
    for (let d = 0; d < n; ++d) {
      const value = logit(d);
      weights[d] = value;
      if (value > peak) peak = value;
    }
    let total = 0;
    for (let d = 0; d < n; ++d) {
      total += Math.exp(weights[d] - peak);
      weights[d] = total;
    }
    this.peak = peak;
    this.logTotal = peak + Math.log(total);
    this.cumulative = weights; // relative to `total`
    this.total = total;
  }

  p(d) {
    return Math.exp(this.logit(d) - this.logTotal);
  }

  logP(d) {
    return this.logit(d) - this.logTotal;
  }

  // Mass of the distances a … b, both included.
  mass(a, b) {
    const upTo = (d) => (d < 0 ? 0 : this.cumulative[Math.min(d, this.n - 1)]);
    return (upTo(b) - upTo(a - 1)) / this.total;
  }

  // The smallest distance that has the share q of the mass at or before it.
  quantile(q) {
    const wanted = q * this.total;
    let low = 0;
    let high = this.n - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.cumulative[middle] >= wanted) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

// The server's classes (server/api/metrics.cpp): by the exponent alone.
const FLAT = 0.02;
export function headClass(beta) {
  if (beta < -FLAT) return 'retrieval';
  if (beta <= FLAT) return 'uniform';
  return beta < 1 ? 'heavy_tail' : 'local';
}

export const CLASSES = {
  local: {name: 'Local', text: 'Falls off at least exponentially: what is near counts.'},
  heavy_tail: {name: 'Heavy tail', text: 'Falls off slower than any exponential: far tokens keep some weight.'},
  retrieval: {name: 'Retrieval', text: 'Ignores what is near and treats all far tokens nearly alike.'},
  uniform: {name: 'Uniform', text: 'Has no opinion about distance.'},
  other: {name: 'No prior', text: 'This encoding has no learned prior over distance.'},
};

// The server's certified reach (models/spectral.cpp) for contexts of up to n tokens: a distance beyond which no key can
// hold more than epsilon of a row's weight, whatever the content says, because |q·k|/sqrt(head_dim) <= Z = logit_bound:
//   2 Z |c| + b (B(d) - B(0)) < ln(epsilon) - ln(m)   at m = d + 1 and m = n (every term is linear in ln m)
// Infinity: the prior sets no limit below n.
export function reachAt(head, model, n, epsilon) {
  const scaled = model.ssmax && model.ssmax_prior;
  const s = model.ssmax ? head.seq_scale : 1;
  if ((scaled ? s : 1) * head.beta <= 0) return Infinity;
  const bias = bamBias(head, model);
  const own = bias(0);
  const proved = (d) => [d + 1, n].every((m) => {
    const c = model.ssmax ? s * Math.log(m) : 1;
    const b = scaled ? c : 1;
    const gap = 2 * head.logit_bound * Math.abs(c) + b * (bias(d) - own);
    return gap + 1e-5 * (Math.abs(gap) + Math.abs(b * own)) < Math.log(epsilon) - Math.log(m);
  });
  // With mu < 0 the peak lies at -mu > 0 and only distances beyond it are monotone.
  let low = Math.max(1, Math.ceil(-mu(head.theta_mu)) + 1);
  let high = n - 1;
  if (low >= n || !proved(high)) return Infinity;
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (proved(middle)) high = middle;
    else low = middle + 1;
  }
  return high;
}
