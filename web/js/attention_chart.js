// One head's row by position: the weight of each part of the text and what the prior alone would have given it. A range is
// chosen by dragging, or with the buttons; the server is asked for it again, in finer parts.

import {axes, Chart, Cursor, line} from './charts.js';
import {fill, h, svg} from './dom.js';
import {count, percent, short} from './format.js';
import {decadeTicks, linearScale, linearTicks} from './scales.js';
import {visible} from './tokens.js';

const DECADES = 8;
const SMALLEST = 8; // keys in a range

export class AttentionChart {
  #data = null; // {report, head, tokens, spans: [[begin, end)]}
  #axis = 'share';
  #x = null;
  #dragFrom = null;

  // onRange(from, to): keys [from, to) are wanted
  constructor(host, onRange) {
    this.onRange = onRange;
    const button = (text, title, run) => h('button', {type: 'button', class: 'small', title, on: {click: run}}, text);
    this.buttons = h('div', {class: 'zoom', role: 'group', 'aria-label': 'Range of positions'},
      button('−', 'Zoom out', () => this.#zoom(2)), button('+', 'Zoom in', () => this.#zoom(0.5)),
      button('‹', 'Earlier', () => this.#pan(-0.5)), button('›', 'Later', () => this.#pan(0.5)),
      button('All', 'The whole text', () => this.onRange(0, this.#data.report.position + 1)),
      button('Peak', 'Around the largest weight', () => this.#toPeak()));
    this.rangeText = h('output', {class: 'range-text'});
    this.readout = h('p', {class: 'readout', 'aria-live': 'polite'});
    const box = h('div', {});
    host.append(h('div', {class: 'zoom-row'}, this.buttons, this.rangeText), box, this.readout);
    this.chart = new Chart(box, {height: 260, label: 'Attention weights by position', focusable: true,
      draw: (canvas) => this.#draw(canvas)});
    this.cursor = new Cursor(this.chart, () => {
      this.chart.redraw();
      this.#describe();
    });
    this.#listenToDrags();
  }

  set(data, axis) {
    this.#data = data;
    this.#axis = axis;
    this.buttons.hidden = !data;
    this.rangeText.textContent = data ? this.#rangeName(data.report) : '';
    this.chart.redraw();
    this.#describe();
  }

  rows() {
    const {report, head} = this.#data;
    return [['first_key', 'last_key', 'weight', 'largest', 'prior', 'token'],
      ...head.sum.map((sum, i) => [...this.#keysOf(i), sum, head.max[i], head.prior[i],
        report.bin_keys === 1 ? this.#data.tokens[report.from + i] : ''])];
  }

  #rangeName({from, to, bin_keys: size}) {
    return `positions ${count(from)} – ${count(to - 1)}` + (size > 1 ? `, ${count(size)} per bar` : '');
  }

  #keysOf(bin) {
    const {from, to, bin_keys: size} = this.#data.report;
    return [from + bin * size, Math.min(to, from + (bin + 1) * size) - 1];
  }

  #listenToDrags() {
    const target = this.chart.svg;
    const keyAt = (event) => Math.round(this.#x.invert(event.clientX - target.getBoundingClientRect().left));
    target.addEventListener('pointerdown', (event) => {
      if (!this.#x || event.button !== 0) return;
      this.#dragFrom = keyAt(event);
    });
    target.addEventListener('pointerup', (event) => {
      const from = this.#dragFrom;
      this.#dragFrom = null;
      if (from === null || !this.#x) return;
      const to = keyAt(event);
      if (Math.abs(to - from) * 40 > this.#data.report.to - this.#data.report.from) this.#ask(Math.min(from, to), Math.max(from, to));
    });
    target.addEventListener('dblclick', () => this.#data && this.onRange(0, this.#data.report.position + 1));
  }

  #ask(from, to) {
    const end = this.#data.report.position + 1;
    const size = Math.min(end, Math.max(SMALLEST, Math.round(to - from)));
    const start = Math.max(0, Math.min(end - size, Math.round(from)));
    this.onRange(start, start + size);
  }

  #zoom(factor) {
    const {from, to} = this.#data.report;
    // Around the cursor, if there is one: where somebody looks is where they want to go.
    const at = this.cursor.index === null ? (from + to) / 2 : this.#keysOf(this.cursor.index)[0];
    const size = (to - from) * factor;
    this.#ask(at - size * (at - from) / (to - from), at + size * (to - at) / (to - from));
  }

  #pan(share) {
    const {from, to} = this.#data.report;
    const step = (to - from) * share;
    this.#ask(from + step, to + step);
  }

  #toPeak() {
    const {head} = this.#data;
    if (head.peaks.length) this.#ask(head.peaks[0].key - 64, head.peaks[0].key + 64);
  }

  #describe() {
    if (!this.#data) {
      this.readout.textContent = '';
      return;
    }
    const {report, head, tokens} = this.#data;
    const at = this.cursor.index;
    if (at === null || at >= head.sum.length) {
      this.readout.textContent = 'Point at a bar, or focus the chart and use the arrow keys; drag over a range to see it in detail.';
      return;
    }
    const [first, last] = this.#keysOf(at);
    const text = tokens[first];
    fill(this.readout, first === last ? h('b', {}, `“${visible(text ?? '')}” `) : '',
      first === last ? `position ${count(first)}, distance ${count(report.position - first)}: ` : `positions ${count(first)} – ${count(last)}: `,
      h('b', {}, percent(head.sum[at])), first === last ? '' : ` (largest ${percent(head.max[at])})`,
      ` · the prior alone: ${percent(head.prior[at])}`);
  }

  #draw({root, width, height}) {
    if (!this.#data) return;
    const {report, head, spans} = this.#data;
    const {from, to, bin_keys: size} = report;
    const x = this.#x = linearScale([from - 0.5, to - 0.5], [56, width - 10]);
    const isLog = this.#axis === 'log';
    const highest = Math.max(...head.sum, ...head.prior, 1e-12);
    const y = linearScale(isLog ? [-DECADES, 0] : [0, highest * 1.05], [height - 38, 14]);
    const value = (w) => (isLog ? Math.max(-DECADES, Math.log10(Math.max(w, 1e-300))) : w);
    const yTicks = isLog ? decadeTicks(y.domain, 4)
      : linearTicks(y.domain, 4).map((v) => ({value: v, text: percent(v).replace(/\.?0+ %/, ' %')}));
    axes(root, {x, y, yTicks, xLabel: 'position', xTicks: linearTicks([from, to - 1], width / 90).filter(Number.isInteger)
      .map((v) => ({value: v, text: to > 10000 ? short(v) : String(v)}))});
    for (const [begin, end] of spans) {
      if (end <= from || begin >= to) continue;
      const left = x(Math.max(from, begin) - 0.5);
      root.append(svg('rect', {x: left, y: y.range[1], width: Math.max(2, x(Math.min(to, end) - 0.5) - left),
        height: y.range[0] - y.range[1], class: 'span-mark'}));
    }
    const middle = (i) => {
      const [first, last] = this.#keysOf(i);
      return x((first + last) / 2);
    };
    const bar = Math.max(1, Math.min(16, ((x.range[1] - x.range[0]) / ((to - from) / size)) * 0.8));
    head.sum.forEach((weight, i) => {
      const top = y(value(weight));
      root.append(svg('rect', {x: middle(i) - bar / 2, y: top, width: bar, height: Math.max(0, y.range[0] - top),
        class: `bar${i === this.cursor.index ? ' active' : ''}`}));
    });
    root.append(line(head.prior.map((p, i) => [middle(i), y(value(p))]), 'curve-alibi'));
    this.cursor.setPositions(head.sum.map((_, i) => middle(i)));
  }
}
