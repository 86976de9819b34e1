// Every head of every layer as a thumbnail of its prior; below it, the share of key tiles that attention really read.

import {polyline} from './charts.js';
import {fill, h, rovingFocus, svg} from './dom.js';
import {percent, signed} from './format.js';
import {CLASSES} from './prior_math.js';
import {distanceScale, sampleDistances} from './scales.js';

const WIDTH = 44;
const HEIGHT = 26;
const POINTS = 40;

export const visitedShare = (head) => {
  const total = head.tiles_visited + head.tiles_skipped;
  return total > 0 ? head.tiles_visited / total : null;
};

// Relative to the peak: a thumbnail shows a shape, not a density.
function thumbnail(logit, n) {
  const distances = sampleDistances(n, POINTS);
  const values = distances.map(logit);
  const peak = Math.max(...values);
  const x = distanceScale(n - 1, [1, WIDTH - 1]);
  return polyline(distances.map((d, i) => [x(d), HEIGHT - 1.5 - Math.exp(values[i] - peak) * (HEIGHT - 4)]));
}

export class HeadMap {
  hasPriors = true; // only then a head has a class and parameters
  #cells = new Map(); // "layer/head" -> {button, path, bar}

  constructor(host, onSelect) {
    this.onSelect = onSelect;
    this.grid = h('div', {class: 'head-map', role: 'grid', 'aria-label': 'Heads by layer'});
    this.more = h('p', {class: 'scroll-hint', hidden: true});
    host.append(this.grid, this.more);
    this.grid.addEventListener('scroll', () => this.#hint());
    new ResizeObserver(() => this.#hint()).observe(this.grid);
  }

  build(heads, numHeads) {
    this.#cells.clear();
    fill(this.grid);
    const layers = Map.groupBy ? Map.groupBy(heads, (head) => head.layer) : groupByLayer(heads);
    for (const [layer, members] of layers) {
      this.grid.append(h('div', {class: 'head-row', role: 'row'},
        h('span', {class: 'layer-name', role: 'rowheader'}, `L${layer}`),
        h('div', {class: 'head-cells', role: 'presentation'}, members.map((head) => this.#cell(head)))));
    }
    rovingFocus(this.grid, '.head-cell', numHeads);
    this.#hint();
  }

  // Says how many layers are out of sight below.
  #hint() {
    const end = this.grid.getBoundingClientRect().bottom;
    const hidden = [...this.grid.children].filter((row) => row.getBoundingClientRect().top >= end - 8).length;
    this.more.hidden = hidden === 0 || this.grid.clientHeight === 0;
    this.more.textContent = `${hidden} more ${hidden === 1 ? 'layer' : 'layers'} below: scroll`;
  }

  #cell(head) {
    const path = svg('path', {class: `line class-${head.class}`});
    const bar = h('i', {class: 'visited-bar'});
    const button = h('button', {type: 'button', class: 'head-cell', role: 'gridcell', tabindex: '-1',
      'data-head': `${head.layer}/${head.head}`, on: {click: () => this.onSelect(head.layer, head.head)}},
    svg('svg', {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', 'aria-hidden': 'true'}, path), bar);
    this.#cells.set(`${head.layer}/${head.head}`, {button, path, bar});
    return button;
  }

  // logitOf(head) -> the prior's logit by distance
  setCurves(heads, logitOf, n) {
    for (const head of heads) {
      this.#cells.get(`${head.layer}/${head.head}`).path.setAttribute('d', thumbnail(logitOf(head), n));
    }
  }

  setCounters(heads) {
    for (const head of heads) {
      const {button, bar} = this.#cells.get(`${head.layer}/${head.head}`);
      const share = visitedShare(head);
      bar.style.setProperty('--share', share ?? 0);
      bar.hidden = share === null;
      const label = `Layer ${head.layer}, head ${head.head}${this.hasPriors ? `: ${CLASSES[head.class].name}, θβ ${signed(head.beta, 2)}` : ''}`
        + (share === null ? '' : `, ${percent(share)} of the tiles visited`);
      button.setAttribute('aria-label', label);
      button.title = label;
    }
  }

  select(layer, head) {
    for (const [key, {button}] of this.#cells) {
      const isSelected = key === `${layer}/${head}`;
      button.setAttribute('aria-selected', String(isSelected));
      button.tabIndex = isSelected ? 0 : -1;
    }
  }
}

function groupByLayer(heads) {
  const layers = new Map();
  for (const head of heads) layers.set(head.layer, [...(layers.get(head.layer) ?? []), head]);
  return layers;
}
