// Small SVG charts. Colours, fonts and line widths are in style.css; this file only knows geometry.

import {h, svg, fill} from './dom.js';
import {linearScale, linearTicks} from './scales.js';

// An SVG that keeps its pixel size in step with its box and calls draw({root, width, height}) when something changed.
export class Chart {
  #host;
  #draw;
  #height;
  #width = 0;

  constructor(host, {height, label, draw, focusable = false}) {
    this.#draw = draw;
    this.#height = height;
    this.svg = svg('svg', {class: 'chart', role: 'img', 'aria-label': label,
      tabindex: focusable ? '0' : undefined});
    this.#host = host;
    host.classList.add('chart-host');
    host.append(this.svg);
    new ResizeObserver(() => this.redraw()).observe(host);
  }

  setLabel(text) {
    this.svg.setAttribute('aria-label', text);
  }

  redraw() {
    const width = Math.floor(this.#host.clientWidth);
    if (width <= 0) return; // hidden
    this.#width = width;
    const height = typeof this.#height === 'function' ? this.#height(width) : this.#height;
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.svg.setAttribute('height', height);
    this.svg.setAttribute('width', width);
    fill(this.svg);
    this.#draw({root: this.svg, width: this.#width, height});
  }
}

export function polyline(points) {
  let path = '';
  let pen = 'M';
  for (const point of points) {
    if (!point || !Number.isFinite(point[0]) || !Number.isFinite(point[1])) {
      pen = 'M'; // a gap
      continue;
    }
    path += `${pen}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    pen = 'L';
  }
  return path;
}

export const line = (points, className) => svg('path', {d: polyline(points), class: `line ${className}`});

export function area(points, baseline, className) {
  const pieces = [[]];
  for (const point of points) {
    if (point && Number.isFinite(point[1])) pieces.at(-1).push(point);
    else pieces.push([]); // a gap
  }
  const d = pieces.filter((piece) => piece.length > 1)
    .map((piece) => `${polyline([...piece, [piece.at(-1)[0], baseline], [piece[0][0], baseline]])}Z`).join('');
  return svg('path', {d, class: className});
}

// Grid lines, tick labels and axis titles around the rectangle that the scales' ranges span.
export function axes(root, {x, y, xTicks, yTicks, xLabel, yLabel}) {
  const [left, right] = x.range;
  const [bottom, top] = y.range;
  for (const tick of yTicks) {
    const at = y(tick.value);
    root.append(svg('line', {x1: left, x2: right, y1: at, y2: at, class: 'grid'}),
      svg('text', {x: left - 6, y: at + 3.5, class: 'tick', 'text-anchor': 'end'}, tick.text));
  }
  for (const tick of xTicks) {
    const at = x(tick.value);
    root.append(svg('line', {x1: at, x2: at, y1: bottom, y2: bottom + 4, class: 'axis'}),
      svg('text', {x: at, y: bottom + 16, class: 'tick', 'text-anchor': 'middle'}, tick.text));
  }
  root.append(svg('line', {x1: left, x2: right, y1: bottom, y2: bottom, class: 'axis'}));
  if (xLabel) root.append(svg('text', {x: right, y: bottom + 32, class: 'axis-title', 'text-anchor': 'end'}, xLabel));
  if (yLabel) root.append(svg('text', {x: left, y: top - 10, class: 'axis-title'}, yLabel));
}

// A vertical line with a label that stays inside the plot.
export function marker(root, x, [bottom, top], text, className, row = 0) {
  const right = root.viewBox.baseVal.width;
  const flip = x > right * 0.7;
  root.append(svg('line', {x1: x, x2: x, y1: bottom, y2: top, class: `marker ${className}`}),
    svg('text', {x: x + (flip ? -5 : 5), y: top + 10 + row * 14, class: `marker-text ${className}`,
      'text-anchor': flip ? 'end' : 'start'}, text));
}

// A cursor that follows pointer and arrow keys. `positions` are pixel x positions; onMove(index | null).
export class Cursor {
  #positions = [];
  #index = null;
  #onMove;

  constructor(chart, onMove) {
    this.#onMove = onMove;
    const target = chart.svg;
    target.addEventListener('pointermove', (event) => {
      const box = target.getBoundingClientRect();
      this.#move(this.#nearest(event.clientX - box.left));
    });
    target.addEventListener('pointerleave', () => this.#move(null));
    target.addEventListener('blur', () => this.#move(null));
    target.addEventListener('keydown', (event) => {
      const step = {ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10}[event.key];
      const last = this.#positions.length - 1;
      if (step === undefined || last < 0) return;
      event.preventDefault();
      const from = this.#index ?? (step > 0 ? -1 : last + 1);
      this.#move(Math.min(last, Math.max(0, from + step)));
    });
  }

  setPositions(positions) {
    this.#positions = positions;
    if (this.#index !== null && this.#index >= positions.length) this.#index = null;
  }

  get index() {
    return this.#index;
  }

  #nearest(x) {
    const positions = this.#positions;
    let low = 0;
    let high = positions.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (positions[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low > 0 && x - positions[low - 1] < positions[low] - x ? low - 1 : positions.length ? low : null;
  }

  #move(index) {
    if (index === this.#index) return;
    this.#index = index;
    this.#onMove(index);
  }
}

// Lines over the time since the first reading, at least one minute and at most `windowS` seconds, with a legend that shows
// the latest values.
export class TimeChart {
  #series;
  #samples = [];
  #windowS;
  #chart;
  #values;
  #format;

  // series: [{name, className}]
  constructor(host, {title, series, format, windowS = 300, height = 132}) {
    this.#series = series;
    this.#format = format;
    this.#windowS = windowS;
    this.#values = series.map(() => h('b', {}, '–'));
    const legend = h('ul', {class: 'legend'}, series.map((s, i) =>
      h('li', {}, h('i', {class: `swatch ${s.className}`}), s.name, ' ', this.#values[i])));
    const box = h('div', {});
    host.append(h('div', {class: 'chart-head'}, h('h3', {}, title), legend), box);
    this.#chart = new Chart(box, {height, label: `${title} over time`,
      draw: (canvas) => this.#draw(canvas)});
  }

  get chart() {
    return this.#chart;
  }

  // Seconds before the last reading, and the values.
  rows() {
    const now = this.#samples.at(-1)?.timeS ?? 0;
    return [['seconds', ...this.#series.map((series) => series.name)],
      ...this.#samples.map((sample) => [(sample.timeS - now).toFixed(1), ...sample.values.map((value) => value ?? '')])];
  }

  // values: one per series, null where nothing was observed
  push(timeS, values) {
    this.#samples.push({timeS, values});
    while (this.#samples.length && this.#samples[0].timeS < timeS - this.#windowS) this.#samples.shift();
    values.forEach((value, i) => {
      const latest = value ?? this.#samples.findLast((s) => s.values[i] !== null)?.values[i];
      this.#values[i].textContent = latest === undefined || latest === null ? '–' : this.#format(latest);
    });
    this.#chart.redraw();
  }

  // A pause in polling leaves a gap, not a straight line.
  gap() {
    const last = this.#samples.at(-1);
    if (last) this.#samples.push({timeS: last.timeS, values: this.#series.map(() => undefined)});
  }

  #draw({root, width, height}) {
    const now = this.#samples.at(-1)?.timeS ?? 0;
    const highest = Math.max(0, ...this.#samples.flatMap((s) => s.values.map((v) => v ?? 0)));
    const spanS = Math.min(this.#windowS, Math.max(60, now - (this.#samples[0]?.timeS ?? now)));
    const x = linearScale([-spanS, 0], [52, width - 14]);
    const y = linearScale([0, highest > 0 ? highest * 1.08 : 1], [height - 22, 10]);
    const [unitS, unit] = spanS > 120 ? [60, 'min'] : [1, 's'];
    const xTicks = linearTicks([-spanS / unitS, 0], width < 420 ? 3 : 5).map((units) => ({
      value: units * unitS, text: units === 0 ? 'now' : `−${-units} ${unit}`}));
    const yTicks = linearTicks(y.domain, 3).filter((value) => highest > 0 || value === 0)
      .map((value) => ({value, text: this.#format(value)}));
    axes(root, {x, y, xTicks, yTicks});
    this.#series.forEach((series, i) => {
      const points = [];
      for (const sample of this.#samples) {
        const value = sample.values[i];
        if (value === null) continue; // nothing observed: the line goes on
        points.push(value === undefined ? null : [x(sample.timeS - now), y(value)]);
      }
      root.append(area(points, y.range[0], `area ${series.className}`), line(points, series.className));
      const last = points.at(-1);
      if (last) root.append(svg('circle', {cx: last[0], cy: last[1], r: 2.5, class: `dot ${series.className}`}));
    });
    if (highest === 0) {
      root.append(svg('text', {x: (x.range[0] + x.range[1]) / 2, y: height / 2, class: 'chart-empty',
        'text-anchor': 'middle'}, this.#samples.length ? 'nothing yet' : 'waiting for the first reading'));
    }
  }
}
