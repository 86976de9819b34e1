// What one head looked at: the tokens of a short prompt, coloured by the weight that a chosen position gave them, beside
// what the prior alone would have said.

import {getJson, postJson} from './api.js';
import {axes, Chart, Cursor, line} from './charts.js';
import {debounce, field, fill, h, rovingFocus, segmented, select, svg} from './dom.js';
import {count, percent, signed} from './format.js';
import {Notice} from './notice.js';
import {alibiLogit, alibiSlope, bamLogit, CLASSES, Distribution} from './prior_math.js';
import {linearScale, linearTicks} from './scales.js';
import {visible} from './tokens.js';

const SAMPLE = 'The pass key is 48213. Remember it. 48213 is the pass key. The grass is green. The sky is blue. '
  + 'The sun is yellow. Here we go. There and back again. What is the pass key? The pass key is 482';
const LIMIT = 2048; // the server's
const DELAY_MS = 300;

export class AttentionView {
  #model = null;
  #tokens = []; // ids
  #texts = [];
  #position = 0;
  #weights = null;
  #prior = null; // Distribution over distance, null without one
  #axis = 'share';
  #latest = null;
  #tokenizing = null;

  constructor(root, app) {
    this.app = app;
    this.notice = new Notice();
    this.prompt = h('textarea', {id: 'attention-prompt', rows: 3, value: SAMPLE, on: {input: () => this.#promptChanged()}});
    this.layer = select([], '', () => this.#refresh());
    this.head = select([], '', () => this.#refresh());
    this.count = h('p', {class: 'token-count'});
    this.badge = h('a', {class: 'badge'});
    this.list = h('div', {class: 'attention-tokens', role: 'group', 'aria-label': 'Tokens of the prompt: choose the looking position'});
    this.summary = h('p', {class: 'stats', role: 'status'});
    this.readout = h('p', {class: 'readout', 'aria-live': 'polite'});
    const chartBox = h('div', {});
    this.content = h('div', {class: 'attention'},
      h('section', {class: 'card', 'aria-label': 'Prompt'},
        h('div', {class: 'card-head'}, h('h2', {}, 'Prompt'), this.count),
        h('label', {class: 'visually-hidden', for: 'attention-prompt'}, 'Prompt'), this.prompt,
        h('div', {class: 'attention-choice'}, field('Layer', this.layer), field('Head', this.head), this.badge)),
      h('section', {class: 'card', 'aria-label': 'Attention over tokens'},
        h('div', {class: 'card-head'}, h('h2', {}, 'Where it looked'),
          h('p', {class: 'card-note'}, 'Choose the token that looks; the others show the weight it gave them.')),
        this.list, this.summary),
      h('section', {class: 'card', 'aria-label': 'Row of attention weights'},
        h('div', {class: 'card-head'}, h('h2', {}, 'Weight by position'),
          h('ul', {class: 'legend'}, h('li', {}, h('i', {class: 'swatch series-a'}), 'attention'),
            h('li', {}, h('i', {class: 'swatch curve-alibi'}), 'the prior alone')),
          h('span', {class: 'spacer'}),
          segmented('Vertical axis', [['share', 'Linear'], ['log', 'Log']], this.#axis, (axis) => {
            this.#axis = axis;
            this.chart.redraw();
          })),
        chartBox, this.readout));
    root.append(this.notice.node, this.content);
    this.chart = new Chart(chartBox, {height: 240, label: 'Attention weights by position', focusable: true,
      draw: (canvas) => this.#draw(canvas)});
    this.cursor = new Cursor(this.chart, () => {
      this.chart.redraw();
      this.#describeCursor();
    });
    rovingFocus(this.list, '.token');
    this.list.addEventListener('click', (event) => this.#choose(event.target.closest('.token')));
    this.list.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' && event.key !== ' ') return;
      event.preventDefault();
      this.#choose(event.target.closest('.token'));
    });
    this.#tokenizeSoon = debounce(DELAY_MS, () => this.#tokenize());
  }

  #tokenizeSoon;

  async show(params) {
    if (!this.#model) {
      try {
        this.#model = await getJson('/v1/prior');
      } catch (error) {
        this.notice.show(error, () => this.show(params));
        return;
      }
      this.#fillChoices();
    }
    const wanted = params?.length >= 2 ? {layer: Number(params[0]), head: Number(params[1])} : this.app.head;
    const other = wanted && (this.layer.value !== String(wanted.layer) || this.head.value !== String(wanted.head));
    if (other) {
      this.layer.value = String(wanted.layer);
      this.head.value = String(wanted.head);
    }
    if (this.#tokens.length === 0) this.#tokenize();
    else if (other) this.#refresh();
  }

  #fillChoices() {
    const options = (n) => Array.from({length: n}, (_, i) => h('option', {value: String(i)}, String(i)));
    fill(this.layer, options(this.#model.num_layers));
    fill(this.head, options(this.#model.num_heads));
    // The most far-sighted head shows most: asked for the next digit, it looks at where the number was given.
    const start = this.#model.heads.reduce((best, head) => (head.beta < best.beta ? head : best));
    this.layer.value = String(start.layer);
    this.head.value = String(start.head);
  }

  #promptChanged() {
    this.count.textContent = 'counting …';
    this.#tokenizeSoon();
  }

  async #tokenize() {
    this.#tokenizing?.abort();
    const abort = this.#tokenizing = new AbortController();
    if (this.prompt.value === '') {
      this.#tokens = [];
      this.#clear('Write a prompt to look into.');
      this.count.textContent = '';
      return;
    }
    try {
      const answer = await postJson('/tokenize', {prompt: this.prompt.value, return_token_strs: true},
        {signal: abort.signal});
      this.#tokens = answer.tokens;
      this.#texts = answer.token_strs;
    } catch (error) {
      if (!abort.signal.aborted) this.notice.show(error, () => this.#tokenize());
      return;
    }
    this.count.textContent = `${count(this.#tokens.length)} of ${count(LIMIT)} tokens`;
    this.notice.clear();
    if (this.#tokens.length > LIMIT) {
      this.#clear(`This view is for short prompts: at most ${count(LIMIT)} tokens.`);
      return;
    }
    this.#position = this.#tokens.length - 1;
    fill(this.list, this.#texts.map((text, i) => h('span', {class: 'token', role: 'button', tabindex: '-1',
      'data-position': i}, text === '\n' ? '↵\n' : text || '∅')));
    this.#refresh();
  }

  #clear(text) {
    this.#weights = null;
    fill(this.list, h('p', {class: 'empty'}, text));
    this.summary.textContent = '';
    this.readout.textContent = '';
    this.chart.redraw();
  }

  #choose(element) {
    if (!element) return;
    this.#position = Number(element.dataset.position);
    this.#refresh();
  }

  get #headInfo() {
    const layer = Number(this.layer.value);
    const head = Number(this.head.value);
    return this.#model.heads.find((each) => each.layer === layer && each.head === head);
  }

  async #refresh() {
    if (this.#tokens.length === 0 || this.#tokens.length > LIMIT) return;
    const head = this.#headInfo;
    this.app.head = {layer: head.layer, head: head.head};
    this.badge.textContent = this.#model.position_encoding === 'bam'
      ? `${CLASSES[head.class].name}, θβ ${signed(head.beta, 2)}` : this.#model.position_encoding;
    this.badge.className = `badge class-${head.class}`;
    this.badge.href = `#prior/${head.layer}/${head.head}`;
    this.badge.title = 'Open the prior of this head';
    this.#latest?.abort();
    const abort = this.#latest = new AbortController();
    this.content.setAttribute('aria-busy', 'true');
    try {
      const answer = await postJson('/v1/attention', {tokens: this.#tokens, layer: head.layer, head: head.head,
        position: this.#position}, {signal: abort.signal});
      this.notice.clear();
      this.#weights = answer.probabilities.slice(0, this.#position + 1);
      this.#prior = this.#priorOf(head, this.#position + 1);
      this.#render();
    } catch (error) {
      if (!abort.signal.aborted) this.notice.show(error, () => this.#refresh());
    } finally {
      if (this.#latest === abort) this.content.removeAttribute('aria-busy');
    }
  }

  #priorOf(head, n) {
    if (this.#model.position_encoding === 'bam') return new Distribution(bamLogit(head, this.#model, n), n);
    if (this.#model.position_encoding === 'alibi') {
      return new Distribution(alibiLogit(alibiSlope(head.head, this.#model.num_heads)), n);
    }
    return null;
  }

  #render() {
    const highest = Math.max(...this.#weights);
    for (const element of this.list.children) {
      const at = Number(element.dataset.position);
      const weight = this.#weights[at];
      const future = at > this.#position;
      element.classList.toggle('future', future);
      element.classList.toggle('looking', at === this.#position);
      element.setAttribute('aria-pressed', String(at === this.#position));
      element.tabIndex = at === this.#position ? 0 : -1;
      element.style.setProperty('--w', future ? 0 : (weight / highest).toFixed(4));
      const label = `${visible(this.#texts[at])}, position ${at}` + (future ? ', not visible' : `, ${percent(weight)}`);
      element.setAttribute('aria-label', label);
      element.title = label;
    }
    const order = [...this.#weights.keys()].sort((a, b) => this.#weights[b] - this.#weights[a]).slice(0, 3);
    this.summary.textContent = `Position ${this.#position} “${visible(this.#texts[this.#position])}” looked most at `
      + order.map((at) => `“${visible(this.#texts[at])}” at ${at} (${percent(this.#weights[at])})`).join(', ') + '.';
    this.chart.redraw();
    this.#describeCursor();
  }

  #describeCursor() {
    const at = this.cursor.index;
    if (!this.#weights || at === null || at >= this.#weights.length) {
      this.readout.textContent = this.#weights ? 'Point at a bar, or focus the chart and use the arrow keys.' : '';
      return;
    }
    const distance = this.#position - at;
    fill(this.readout, h('b', {}, `“${visible(this.#texts[at])}”`), ` position ${at}, distance ${distance}: `,
      h('b', {}, percent(this.#weights[at])),
      this.#prior && ` (the prior alone: ${percent(this.#prior.p(distance))})`);
  }

  #draw({root, width, height}) {
    if (!this.#weights) return;
    const n = this.#weights.length;
    const x = linearScale([-0.5, n - 0.5], [50, width - 10]);
    const prior = this.#prior && this.#weights.map((_, at) => this.#prior.p(this.#position - at));
    const highest = Math.max(...this.#weights, ...(prior ?? []));
    const isLog = this.#axis === 'log';
    const floor = -8;
    const value = (w) => (isLog ? Math.max(floor, Math.log10(Math.max(w, 1e-300))) : w);
    const y = linearScale(isLog ? [floor, 0] : [0, highest * 1.05], [height - 38, 14]);
    const yTicks = isLog
      ? linearTicks([floor, 0], 4).map((v) => ({value: v, text: percent(10 ** v)}))
      : linearTicks(y.domain, 4).map((v) => ({value: v, text: percent(v).replace(/\.?0+ %/, ' %')}));
    axes(root, {x, y, xTicks: linearTicks([0, n - 1], width / 80).filter(Number.isInteger)
      .map((v) => ({value: v, text: String(v)})), yTicks, xLabel: 'position'});
    const bar = Math.max(1, Math.min(14, ((x.range[1] - x.range[0]) / n) * 0.7));
    this.#weights.forEach((weight, at) => {
      const top = y(value(weight));
      root.append(svg('rect', {x: x(at) - bar / 2, y: top, width: bar, height: Math.max(0, y.range[0] - top),
        class: `bar${at === this.cursor.index ? ' active' : ''}`}));
    });
    if (prior) root.append(line(prior.map((p, at) => [x(at), y(value(p))]), 'curve-alibi'));
    this.cursor.setPositions(this.#weights.map((_, at) => x(at)));
  }
}
