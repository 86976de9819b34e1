// All heads in the plane of their exponent and scale, as in the paper: what a head is can be read off its place.

import {exportButtons} from './chart_export.js';
import {axes, Chart} from './charts.js';
import {fill, h, segmented, svg} from './dom.js';
import {signed} from './format.js';
import {alibiSlope, CLASSES} from './prior_math.js';
import {linearScale, linearTicks} from './scales.js';

const REGIONS = [['retrieval', -Infinity, 0], ['heavy_tail', 0, 1], ['local', 1, Infinity]];

function paddedRange(values) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const pad = Math.max(0.15, (high - low) * 0.08);
  return [low - pad, high + pad];
}

export class PriorScatter {
  #data = null; // {heads, numLayers, numHeads, selected, whatIf}
  #colour = 'class';

  constructor(host, onSelect) {
    this.onSelect = onSelect;
    this.legend = h('ul', {class: 'legend'});
    const box = h('div', {});
    host.append(h('div', {class: 'card-head'}, h('h2', {}, 'All heads'),
      segmented('Colour by', [['class', 'Class'], ['layer', 'Layer']], this.#colour, (value) => {
        this.#colour = value;
        this.chart.redraw();
        this.#showLegend();
      })), box, this.legend);
    this.chart = new Chart(box, {height: (width) => Math.min(380, Math.max(260, width * 0.62)),
      label: 'Scatter of shape and scale of every head', draw: (canvas) => this.#draw(canvas)});
    host.append(exportButtons('heads', {chart: this.chart, rows: () => [['layer', 'head', 'class', 'theta_alpha', 'theta_beta', 'theta_mu'],
      ...this.#data.heads.map((head) => [head.layer, head.head, head.class, head.alpha, head.beta, head.theta_mu])]}));
  }

  set(data) {
    const known = this.#data !== null;
    this.#data = data;
    if (!known) this.#showLegend();
    this.chart.redraw();
  }

  // What the colours mean: classes, or the way from the first layer to the last.
  #showLegend() {
    const last = (this.#data?.numLayers ?? 1) - 1;
    const colours = this.#colour === 'class'
      ? ['retrieval', 'heavy_tail', 'local', 'uniform'].map((key) =>
        h('li', {}, h('i', {class: `swatch round class-${key}`}), CLASSES[key].name))
      : h('li', {class: 'layer-legend'}, 'layer 0', last > 0 && h('i', {class: 'layer-scale'}), last > 0 && `layer ${last}`);
    fill(this.legend, colours, h('li', {}, h('i', {class: 'swatch cross'}), 'ALiBi'));
  }

  #draw({root, width, height}) {
    if (!this.#data) return;
    const {heads, numHeads, whatIf} = this.#data;
    const extra = whatIf ? [whatIf] : [];
    // ALiBi's slopes fall to 2^-8; those far below every learned head would only squeeze the picture.
    const lowest = Math.min(...heads.map((e) => e.alpha)) - 1.5;
    const slopes = Array.from({length: numHeads}, (_, k) => Math.log(alibiSlope(k, numHeads))).filter((a) => a > lowest);
    const xs = paddedRange([...heads, ...extra].map((e) => e.beta).concat(-0.2, 1.1));
    const ys = paddedRange([...heads, ...extra].map((e) => e.alpha).concat(slopes));
    const x = linearScale(xs, [46, width - 12]);
    const y = linearScale(ys, [height - 38, 26]);
    this.#drawRegions(root, x, y);
    const text = (value) => ({value, text: signed(value, 2).replace(/\.?0+$/, '')});
    axes(root, {x, y, xTicks: linearTicks(xs, width / 70).map(text), yTicks: linearTicks(ys, 5).map(text),
      xLabel: 'shape θβ', yLabel: ''});
    root.append(svg('text', {x: 4, y: 12, class: 'axis-title'}, 'scale θα'));
    for (const slope of slopes) {
      const at = [x(1), y(slope)];
      root.append(svg('path', {d: `M${at[0] - 3} ${at[1] - 3}l6 6m0 -6l-6 6`, class: 'cross'}));
    }
    for (const head of heads) this.#drawHead(root, head, x, y);
    if (whatIf) {
      root.append(svg('path', {class: 'what-if-mark',
        d: `M${x(whatIf.beta)} ${y(whatIf.alpha) - 6}l6 6l-6 6l-6 -6Z`}));
    }
  }

  #drawRegions(root, x, y) {
    for (const [name, low, high] of REGIONS) {
      const from = Math.max(x.range[0], Number.isFinite(low) ? x(low) : x.range[0]);
      const to = Math.min(x.range[1], Number.isFinite(high) ? x(high) : x.range[1]);
      if (to - from < 4) continue;
      root.append(svg('rect', {x: from, y: y.range[1], width: to - from, height: y.range[0] - y.range[1],
        class: `region class-${name}`}));
      if (to - from > 60) {
        root.append(svg('text', {x: (from + to) / 2, y: y.range[1] + 12, class: `region-text class-${name}`,
          'text-anchor': 'middle'}, CLASSES[name].name.toLowerCase()));
      }
    }
  }

  #drawHead(root, head, x, y) {
    const {numLayers, selected} = this.#data;
    const isSelected = selected?.layer === head.layer && selected?.head === head.head;
    const byLayer = this.#colour === 'layer';
    const circle = svg('circle', {cx: x(head.beta), cy: y(head.alpha), r: isSelected ? 6 : 4.5,
      class: `head-dot ${byLayer ? 'by-layer' : `class-${head.class}`}${isSelected ? ' selected' : ''}`,
      vars: byLayer ? {'--layer': numLayers > 1 ? head.layer / (numLayers - 1) : 0} : undefined,
      on: {click: () => this.onSelect(head.layer, head.head)}},
    svg('title', {}, `layer ${head.layer}, head ${head.head}: θβ ${signed(head.beta)}, θα ${signed(head.alpha)}`));
    root.append(circle);
  }
}
