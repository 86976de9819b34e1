// Where a row of the text looked: every head at once, then one of them in detail, at any length that the server can hold. The
// text is written here, or comes from the playground: the row that produced a token, or the one that found a passkey.

import {getJson, postJson} from './api.js';
import {AttentionChart} from './attention_chart.js';
import {AttentionGrid, GRID_BINS} from './attention_grid.js';
import {exportButtons} from './chart_export.js';
import {debounce, field, fill, h, rovingFocus, segmented, select} from './dom.js';
import {count, percent, signed} from './format.js';
import {Notice} from './notice.js';
import {CLASSES} from './prior_math.js';
import {linkButton} from './links.js';
import {visible} from './tokens.js';

const SAMPLE = 'The pass key is 48213. Remember it. 48213 is the pass key. The grass is green. The sky is blue. '
  + 'The sun is yellow. Here we go. There and back again. What is the pass key? The pass key is 482';
const DETAIL_BINS = 512;
const LISTED = 512; // tokens that are shown one by one, at most
const PEAKS = 8;
const CONTEXT = 8;
const DELAY_MS = 300;

// The vocabulary of sentencepiece writes a blank as ▁.
const spaced = (text) => text.replaceAll('▁', ' ');

export class AttentionView {
  #model = null;
  #ids = []; // token ids of the text
  #strings = []; // how the vocabulary spells them, of a text that is written here
  #subject = null; // {title, spans: [{name, range}]}: not the text that is written here
  #position = 0;
  #range = null; // [from, to)
  #axis = 'share';
  #grid = null; // the reply about all heads
  #detail = null; // the reply about one
  #openBest = false; // the head that gave most weight to what was looked for is opened when it is known
  #latest = {grid: null, detail: null, tokens: null};

  constructor(root, app) {
    this.app = app;
    this.notice = new Notice();
    this.prompt = h('textarea', {id: 'attention-prompt', rows: 3, value: SAMPLE, on: {input: () => this.#promptChanged()}});
    this.layer = select([], '', () => this.#chooseHead(Number(this.layer.value), Number(this.head.value)));
    this.head = select([], '', () => this.#chooseHead(Number(this.layer.value), Number(this.head.value)));
    this.count = h('p', {class: 'token-count'});
    this.badge = h('a', {class: 'badge'});
    this.subject = h('div', {class: 'attention-subject', hidden: true});
    this.list = h('div', {class: 'attention-tokens', role: 'group', 'aria-label': 'Tokens of the range: choose the looking position'});
    this.summary = h('p', {class: 'stats', role: 'status'});
    this.peaks = h('div', {class: 'table-scroll'});
    const gridBox = h('div', {});
    const chartBox = h('div', {});
    this.grid = new AttentionGrid(gridBox, (layer, head) => this.#chooseHead(layer, head));
    this.chart = new AttentionChart(chartBox, (from, to) => this.#setRange(from, to));
    const axis = segmented('Vertical axis', [['share', 'Linear'], ['log', 'Log']], this.#axis, (name) => {
      this.#axis = name;
      this.#drawGrid();
      this.#drawDetail();
    });
    this.content = h('div', {class: 'attention'},
      h('section', {class: 'card', 'aria-label': 'Prompt'},
        h('div', {class: 'card-head'}, h('h2', {}, 'Prompt'), this.count, h('span', {class: 'spacer'}),
          linkButton(() => ({view: `attention/${this.layer.value}/${this.head.value}`, prompt: this.#subject ? '' : this.prompt.value}))),
        this.subject,
        this.promptBox = h('div', {}, h('label', {class: 'visually-hidden', for: 'attention-prompt'}, 'Prompt'), this.prompt),
        h('div', {class: 'attention-choice'}, field('Layer', this.layer), field('Head', this.head), this.badge)),
      h('section', {class: 'card attention-all', 'aria-label': 'All heads'},
        h('div', {class: 'card-head'}, h('h2', {}, 'All heads'),
          h('p', {class: 'card-note'}, 'One row of the text, from its beginning (left) to the token that looks. Choose a head.'),
          h('span', {class: 'spacer'}), axis, exportButtons('attention-heads', {rows: () => this.grid.rows()})), gridBox),
      h('section', {class: 'card', 'aria-label': 'Row of attention weights'},
        h('div', {class: 'card-head'}, h('h2', {}, 'Weight by position'),
          h('ul', {class: 'legend'}, h('li', {}, h('i', {class: 'swatch series-a'}), 'attention'),
            h('li', {}, h('i', {class: 'swatch curve-alibi'}), 'the prior alone')),
          h('span', {class: 'spacer'}), exportButtons('attention', {chart: this.chart.chart, rows: () => this.chart.rows()})),
        chartBox, this.peaks),
      h('section', {class: 'card', 'aria-label': 'Attention over tokens'},
        h('div', {class: 'card-head'}, h('h2', {}, 'Where it looked'),
          h('p', {class: 'card-note'}, 'Choose the token that looks; the others show the weight it gave them.')),
        this.list, this.summary));
    root.append(this.notice.node, this.content);
    rovingFocus(this.list, '.token');
    this.list.addEventListener('click', (event) => this.#choosePosition(event.target.closest('.token')));
    this.list.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' && event.key !== ' ') return;
      event.preventDefault();
      this.#choosePosition(event.target.closest('.token'));
    });
    this.#tokenizeSoon = debounce(DELAY_MS, () => this.#tokenize());
  }

  #tokenizeSoon;

  async show(params, prompt) {
    const chosen = this.app.head; // before the first head is set here
    if (!this.#model) {
      try {
        this.#model = await getJson('/v1/prior');
      } catch (error) {
        this.notice.show(error, () => this.show(params, prompt));
        return;
      }
      this.#fillChoices();
    }
    const wanted = params?.length >= 2 ? {layer: Number(params[0]), head: Number(params[1])} : chosen;
    const other = wanted && (this.layer.value !== String(wanted.layer) || this.head.value !== String(wanted.head));
    if (other) this.#setHead(wanted.layer, wanted.head);
    const look = this.app.look;
    this.app.look = null;
    if (look) {
      this.#lookAt(look);
    } else if (prompt !== undefined && prompt !== this.prompt.value) {
      this.prompt.value = prompt;
      this.#leaveSubject();
    } else if (this.#ids.length === 0) {
      this.#tokenize();
    } else if (other) {
      this.#refreshDetail();
    }
  }

  #fillChoices() {
    const options = (n) => Array.from({length: n}, (_, i) => h('option', {value: String(i)}, String(i)));
    fill(this.layer, options(this.#model.num_layers));
    fill(this.head, options(this.#model.num_heads));
    this.grid.setModel(this.#model);
    // The most far-sighted head shows most: asked for the next digit, it looks at where the number was given.
    const start = this.#model.heads.reduce((best, head) => (head.beta < best.beta ? head : best));
    this.#setHead(start.layer, start.head);
  }

  // ---- the text

  #promptChanged() {
    this.count.textContent = 'counting …';
    this.#tokenizeSoon();
  }

  // look: {ids, title, spans: [{name, range: [begin, end)}]}; the last of the ids is the token that looks
  #lookAt(look) {
    this.#subject = look;
    this.#openBest = look.spans.length > 0;
    this.promptBox.hidden = true;
    fill(this.subject, h('p', {}, look.title),
      h('button', {type: 'button', class: 'small', on: {click: () => this.#leaveSubject()}}, 'Write a prompt instead'));
    this.subject.hidden = false;
    this.#setText(look.ids);
  }

  #leaveSubject() {
    this.#subject = null;
    this.#openBest = false;
    this.subject.hidden = true;
    this.promptBox.hidden = false;
    this.#tokenize();
  }

  async #tokenize() {
    if (this.prompt.value === '') {
      this.#ids = [];
      this.#clear('Write a prompt to look into.');
      this.count.textContent = '';
      return;
    }
    const answer = await this.#ask('tokens', '/tokenize', {prompt: this.prompt.value, return_token_strs: true}, () => this.#tokenize());
    if (answer) this.#setText(answer.tokens, answer.token_strs);
  }

  #setText(ids, strings = []) {
    this.#ids = ids;
    this.#strings = strings;
    this.#position = ids.length - 1;
    this.#range = null;
    this.count.textContent = `${count(ids.length)} tokens`;
    this.notice.clear();
    this.#refresh();
  }

  #clear(text) {
    this.#grid = this.#detail = null;
    this.grid.set(null, this.#axis, []);
    this.chart.set(null, this.#axis);
    fill(this.list, h('p', {class: 'empty'}, text));
    fill(this.peaks);
    this.summary.textContent = '';
  }

  #choosePosition(element) {
    if (!element) return;
    this.#position = Number(element.dataset.position);
    this.#range = null;
    this.#refresh();
  }

  // ---- the head

  get #headInfo() {
    const layer = Number(this.layer.value);
    const head = Number(this.head.value);
    return this.#model.heads.find((each) => each.layer === layer && each.head === head);
  }

  #setHead(layer, head) {
    this.layer.value = String(layer);
    this.head.value = String(head);
    const info = this.#headInfo;
    this.app.head = {layer, head};
    this.badge.textContent = this.#model.position_encoding === 'bam'
      ? `${CLASSES[info.class].name}, θβ ${signed(info.beta, 2)}` : this.#model.position_encoding;
    this.badge.className = `badge class-${info.class}`;
    this.badge.href = `#prior/${layer}/${head}`;
    this.badge.title = 'Open the prior of this head';
    this.grid.select(layer, head);
  }

  #chooseHead(layer, head) {
    this.#openBest = false;
    this.#setHead(layer, head);
    this.#refreshDetail();
  }

  #setRange(from, to) {
    this.#range = [from, to];
    this.#refreshDetail();
  }

  // ---- asking

  // The reply, or undefined when it failed or a later question of the same kind replaced it.
  async #ask(kind, path, body, retry) {
    this.#latest[kind]?.abort();
    const abort = this.#latest[kind] = new AbortController();
    this.content.setAttribute('aria-busy', 'true');
    try {
      return await postJson(path, body, {signal: abort.signal});
    } catch (error) {
      if (!abort.signal.aborted) this.notice.show(error, retry);
      return undefined;
    } finally {
      if (this.#latest[kind] === abort) this.#latest[kind] = null;
      if (Object.values(this.#latest).every((each) => each === null)) this.content.removeAttribute('aria-busy');
    }
  }

  // A million ids: written by hand, because JSON.stringify would first make an array of boxed numbers.
  #body(fields) {
    const ids = this.#position + 1 < this.#ids.length ? this.#ids.slice(0, this.#position + 1) : this.#ids;
    const spans = this.#spans.filter(({range}) => range[1] <= this.#position + 1).map(({range}) => range);
    return `{"tokens":[${ids.join(',')}],${JSON.stringify({spans, ...fields}).slice(1)}`;
  }

  get #spans() {
    return this.#subject?.spans ?? [];
  }

  async #refresh() {
    if (this.#ids.length === 0) return;
    if (!this.#openBest) this.#refreshDetail();
    const reply = await this.#ask('grid', '/v1/attention', this.#body({bins: GRID_BINS, peaks: 1, context: 0}), () => this.#refresh());
    if (!reply) return;
    this.#grid = reply;
    this.#drawGrid();
    if (this.#openBest) this.#chooseHead(this.grid.best.layer, this.grid.best.head);
  }

  async #refreshDetail() {
    if (this.#ids.length === 0) return;
    const [from, to] = this.#range ?? [0, this.#position + 1];
    const reply = await this.#ask('detail', '/v1/attention', this.#body({layer: Number(this.layer.value), head: Number(this.head.value),
      from, to, bins: DETAIL_BINS, peaks: PEAKS, context: CONTEXT}), () => this.#refreshDetail());
    if (!reply) return;
    this.#detail = reply;
    this.notice.clear();
    this.#drawDetail();
  }

  // ---- drawing

  #drawGrid() {
    if (!this.#grid) return;
    this.grid.set(this.#grid, this.#axis, this.#spans.filter(({range}) => range[1] <= this.#position + 1));
    this.grid.select(Number(this.layer.value), Number(this.head.value));
  }

  #drawDetail() {
    if (!this.#detail) return;
    const [head] = this.#detail.heads;
    this.chart.set({report: this.#detail, head, tokens: this.#detail.tokens, spans: this.#spans.map(({range}) => range)}, this.#axis);
    this.#drawTokens(head);
    this.#drawPeaks(head);
  }

  // The tokens of the range one by one if it is short; of a long text those around the peaks are in the table.
  #drawTokens(head) {
    const {from, to, position, tokens, bin_keys: size} = this.#detail;
    const highest = Math.max(...head.max, 1e-30);
    const short = size === 1 && to - from <= LISTED;
    const wholeText = !this.#subject && this.#ids.length <= LISTED && short && from === 0 && to === position + 1;
    const shown = short ? Array.from({length: (wholeText ? this.#ids.length : to) - from}, (_, i) => from + i) : [];
    if (!short) fill(this.list, h('p', {class: 'empty'}, `Zoom into ${LISTED} positions or fewer to see their tokens one by one.`));
    else fill(this.list, shown.map((at) => this.#token(at, this.#strings[at] ?? tokens[at] ?? '', head.sum[at - from], highest)));
    const top = head.peaks.slice(0, 3);
    this.summary.textContent = `Position ${count(position)} “${visible(tokens[position] ?? '')}” looked most at `
      + top.map((peak) => `“${visible(tokens[peak.key] ?? '')}” at ${count(peak.key)} (${percent(peak.weight)})`).join(', ') + '.';
  }

  #token(at, text, weight, highest) {
    const future = at > this.#position;
    const looking = at === this.#position;
    const label = `${visible(text)}, position ${at}` + (future ? ', not visible' : `, ${percent(weight)}`);
    return h('span', {class: `token${future ? ' future' : ''}${looking ? ' looking' : ''}`, role: 'button', tabindex: looking ? '0' : '-1',
      'data-position': at, 'aria-pressed': String(looking), 'aria-label': label, title: label,
      vars: {'--w': future ? 0 : (weight / highest).toFixed(4)}}, text === '\n' ? '↵\n' : text || '∅');
  }

  #drawPeaks(head) {
    const {tokens, position} = this.#detail;
    const around = (at) => {
      const words = [];
      for (let i = at - CONTEXT; i <= at + CONTEXT; ++i) {
        if (tokens[i] === undefined) continue;
        words.push(i === at ? h('mark', {}, visible(spaced(tokens[i]))) : spaced(tokens[i]));
      }
      return h('span', {class: 'peak-context'}, words);
    };
    fill(this.peaks, h('table', {class: 'runs peaks'},
      h('thead', {}, h('tr', {}, ['Position', 'Distance', 'Weight', 'Prior alone', 'Tokens around it'].map((text) => h('th', {scope: 'col'}, text)))),
      h('tbody', {}, head.peaks.map((peak) => h('tr', {}, h('td', {}, h('button', {type: 'button', class: 'quiet small',
        title: 'Show its neighbourhood', on: {click: () => this.#setRange(Math.max(0, peak.key - 64), Math.min(position + 1, peak.key + 64))}},
      count(peak.key))), h('td', {}, count(position - peak.key)), h('td', {}, percent(peak.weight)), h('td', {}, percent(peak.prior)),
      h('td', {}, around(peak.key)))))));
  }
}
