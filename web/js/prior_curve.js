// The curve p(distance) of a head, with whatever it is compared with, on an axis that reaches from 0 to a million.

import {exportButtons} from './chart_export.js';
import {area, axes, Chart, Cursor, line, marker} from './charts.js';
import {fill, h, svg} from './dom.js';
import {count, percent, probability, short} from './format.js';
import {decadeTicks, distanceScale, distanceTicks, linearScale, linearTicks, sampleDistances} from './scales.js';

const POINTS = 320;
const DECADES = 12; // of a logarithmic probability axis, at most
const LN10 = Math.LN10;

export class PriorCurve {
  #state = null; // {n, mode, curves: [{name, className, distribution, filled}], marks: [{d, text, className}]}
  #distances = [];

  constructor(host) {
    const box = h('div', {});
    this.readout = h('p', {class: 'readout', 'aria-live': 'polite'});
    host.append(box, this.readout);
    this.chart = new Chart(box, {height: (width) => (width < 500 ? 260 : 340), focusable: true,
      label: 'Prior over distance', draw: (canvas) => this.#draw(canvas)});
    this.cursor = new Cursor(this.chart, () => this.#moved());
    host.append(exportButtons('prior', {chart: this.chart, rows: () => this.rows()}));
  }

  set(state) {
    this.#state = state;
    this.chart.setLabel(state.label);
    this.chart.redraw();
    this.#describe();
  }

  rows() {
    const {curves} = this.#state;
    return [['distance', ...curves.map((curve) => curve.name)],
      ...this.#distances.map((d) => [d, ...curves.map((curve) => (d < curve.distribution.n ? curve.distribution.p(d) : ''))])];
  }

  #moved() {
    this.chart.redraw();
    this.#describe();
  }

  #describe() {
    if (!this.#state) return;
    const d = this.#distances[this.cursor.index ?? -1];
    if (d === undefined) {
      fill(this.readout, 'Point at the curve, or focus it and use the arrow keys.');
      return;
    }
    fill(this.readout, h('b', {}, `distance ${count(d)}`), this.#state.curves.map((curve) => h('span', {},
      h('i', {class: `swatch ${curve.className}`}), ` ${curve.name} `,
      h('b', {}, `p = ${probability(curve.distribution.p(d))}`),
      ` (${percent(curve.distribution.mass(0, d))} within)`)));
  }

  // y position in axis units: powers of ten, probability, or share.
  #value(curve, d) {
    if (this.#state.mode === 'log') return curve.distribution.logP(d) / LN10;
    if (this.#state.mode === 'linear') return curve.distribution.p(d);
    return curve.distribution.mass(0, d);
  }

  #verticalAxis(range) {
    const {mode, curves} = this.#state;
    if (mode === 'cumulative') {
      const y = linearScale([0, 1], range);
      return {y, ticks: linearTicks([0, 1], 4).map((value) => ({value, text: `${Math.round(value * 100)} %`})),
        label: 'share of the prior within this distance'};
    }
    const peak = Math.max(...curves.map((c) => c.distribution.peak - c.distribution.logTotal));
    if (mode === 'linear') {
      const y = linearScale([0, Math.exp(peak) * 1.05], range);
      return {y, ticks: linearTicks(y.domain, 4).map((value) => ({value, text: String(Number(value.toPrecision(3)))})),
        label: 'p(distance)'};
    }
    const top = Math.ceil(peak / LN10 + 0.05);
    const lowest = Math.min(...curves.flatMap((c) => this.#distances.map((d) => (d < c.distribution.n
      ? c.distribution.logP(d) / LN10 : top))));
    const y = linearScale([Math.max(top - DECADES, Math.floor(lowest)), top], range);
    return {y, ticks: decadeTicks(y.domain, 6), label: 'p(distance), logarithmic'};
  }

  #draw({root, width, height}) {
    if (!this.#state) return;
    const {n, curves, marks} = this.#state;
    this.#distances = sampleDistances(n, POINTS, marks.map((m) => m.d));
    const left = width < 500 ? 44 : 54;
    const x = distanceScale(n - 1, [left, width - 12]);
    const {y, ticks, label} = this.#verticalAxis([height - 40, 24]);
    axes(root, {x, y, xTicks: distanceTicks(n - 1, width / 52), yTicks: ticks, xLabel: 'distance, tokens', yLabel: label});
    const clipId = 'prior-clip';
    root.append(svg('clipPath', {id: clipId}, svg('rect', {x: x.range[0], y: y.range[1] - 2,
      width: x.range[1] - x.range[0] + 2, height: y.range[0] - y.range[1] + 3})));
    const plot = svg('g', {'clip-path': `url(#${clipId})`});
    root.append(plot);
    marks.forEach((m, row) => marker(root, x(m.d), y.range, m.text, m.className, row));
    for (const curve of [...curves].reverse()) {
      const points = this.#distances.map((d) => [x(d), y(Math.max(this.#value(curve, d), y.domain[0] - 5))]);
      if (curve.filled) plot.append(area(points, y.range[0], `area ${curve.className}`));
      plot.append(line(points, curve.className));
    }
    this.cursor.setPositions(this.#distances.map(x));
    this.#drawCursor(root, plot, x, y);
  }

  #drawCursor(root, plot, x, y) {
    const d = this.#distances[this.cursor.index ?? -1];
    if (d === undefined) return;
    const at = x(d);
    root.append(svg('line', {x1: at, x2: at, y1: y.range[0], y2: y.range[1], class: 'cursor'}));
    for (const curve of this.#state.curves) {
      const value = this.#value(curve, d);
      plot.append(svg('circle', {cx: at, cy: y(value), r: 3.5, class: `dot ${curve.className}`}));
    }
  }
}

export const lengthLabel = (n) => `${short(n)} tokens`;
