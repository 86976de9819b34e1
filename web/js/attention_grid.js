// All heads of all layers at once: where one row of the text looked, as a small picture per head, and the heads in the order
// of the weight that they gave to chosen tokens.

import {fill, h, rovingFocus, svg} from './dom.js';
import {percent} from './format.js';

export const GRID_BINS = 96;
const WIDTH = 96;
const HEIGHT = 34;
const DECADES = 6; // of the logarithmic axis
const RANKED = 12;

export const axisValue = (axis, weight, top) =>
  axis === 'log' ? Math.max(0, 1 + Math.log10(Math.max(weight, 1e-300)) / DECADES) : weight / (top || 1);

function bars(sums, axis) {
  const top = Math.max(...sums);
  const step = WIDTH / sums.length;
  return sums.map((weight, i) => {
    const height = axisValue(axis, weight, top) * (HEIGHT - 3);
    return height < 0.3 ? '' : `M${(i * step).toFixed(2)} ${HEIGHT}v${(-height).toFixed(2)}h${Math.max(0.8, step * 0.9).toFixed(2)}v${height.toFixed(2)}z`;
  }).join('');
}

export class AttentionGrid {
  #report = null;
  #axis = 'share';
  #classes = new Map(); // "layer/head" -> class
  #selected = '';

  constructor(host, onSelect) {
    this.onSelect = onSelect;
    this.grid = h('div', {class: 'attention-grid', role: 'grid', 'aria-label': 'Attention of every head'});
    this.ranking = h('div', {class: 'table-scroll', hidden: true});
    host.append(this.ranking, this.grid);
    this.grid.addEventListener('click', (event) => this.#choose(event.target.closest('.attention-cell')));
    rovingFocus(this.grid, '.attention-cell', () => this.#report?.perLayer ?? 1);
  }

  setModel(model) {
    this.#classes = new Map(model.heads.map((head) => [`${head.layer}/${head.head}`, head.class]));
    this.perLayer = model.num_heads;
  }

  // spans: [{name}] in the order of the report's
  set(report, axis, spans) {
    this.#report = report && {...report, perLayer: this.perLayer};
    this.#axis = axis;
    this.#draw();
    this.#rank(spans);
  }

  select(layer, head) {
    this.#selected = `${layer}/${head}`;
    for (const cell of this.grid.querySelectorAll('.attention-cell')) {
      const chosen = cell.dataset.head === this.#selected;
      cell.setAttribute('aria-selected', String(chosen));
      cell.tabIndex = chosen ? 0 : -1;
    }
    for (const row of this.ranking.querySelectorAll('tbody tr')) row.classList.toggle('chosen', row.dataset.head === this.#selected);
  }

  // The head that gave most weight to the spans.
  get best() {
    return this.#ranked()[0].head;
  }

  rows() {
    const {heads, from, bin_keys: size} = this.#report;
    return [['layer', 'head', 'first_key', 'last_key', 'weight', 'largest', 'prior'],
      ...heads.flatMap((head) => head.sum.map((sum, i) => [head.layer, head.head, from + i * size,
        Math.min(this.#report.to, from + (i + 1) * size) - 1, sum, head.max[i], head.prior[i]]))];
  }

  #choose(cell) {
    if (cell) this.onSelect(...cell.dataset.head.split('/').map(Number));
  }

  #draw() {
    fill(this.grid);
    if (!this.#report) return;
    const layers = new Map();
    for (const head of this.#report.heads) layers.set(head.layer, [...(layers.get(head.layer) ?? []), head]);
    for (const [layer, heads] of layers) {
      this.grid.append(h('div', {class: 'attention-grid-row', role: 'row'},
        h('span', {class: 'layer-name', role: 'rowheader'}, `L${layer}`),
        h('div', {class: 'attention-cells', role: 'presentation'}, heads.map((head) => this.#cell(head)))));
    }
  }

  #cell(head) {
    const name = `${head.layer}/${head.head}`;
    const peak = head.peaks[0];
    const label = `Layer ${head.layer}, head ${head.head}: looked most at position ${peak.key} (${percent(peak.weight)})`;
    return h('button', {type: 'button', class: 'attention-cell', role: 'gridcell', tabindex: '-1', 'data-head': name,
      'aria-label': label, title: label},
    svg('svg', {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', 'aria-hidden': 'true'},
      svg('path', {d: bars(head.sum, this.#axis), class: `bars class-${this.#classes.get(name) ?? 'other'}`})));
  }

  #ranked() {
    return this.#report.heads.map((head) => ({head, weight: head.spans.reduce((a, b) => a + b, 0)})).sort((a, b) => b.weight - a.weight);
  }

  #rank(spans) {
    this.ranking.hidden = !this.#report || spans.length === 0;
    if (this.ranking.hidden) return;
    fill(this.ranking, h('table', {class: 'runs ranking'}, h('thead', {}, h('tr', {},
      ['', 'Head', 'Class', 'Weight on the key', ...(spans.length > 1 ? spans.map((span) => span.name) : [])]
        .map((text) => h('th', {scope: 'col'}, text)))),
    h('tbody', {}, this.#ranked().slice(0, RANKED).map(({head, weight}, i) => {
      const name = `${head.layer}/${head.head}`;
      return h('tr', {'data-head': name}, h('td', {}, `${i + 1}.`),
        h('td', {}, h('button', {type: 'button', class: 'quiet small', on: {click: () => this.onSelect(head.layer, head.head)}},
          `layer ${head.layer}, head ${head.head}`)),
        h('td', {}, (this.#classes.get(name) ?? '').replace('_', ' ')), h('td', {}, percent(weight)),
        spans.length > 1 && head.spans.map((span) => h('td', {}, percent(span))));
    }))));
    this.select(...this.#selected.split('/').map(Number));
  }
}
