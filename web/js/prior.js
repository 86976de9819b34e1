// The prior explorer: each head's belief about distance is a curve, and here it is.

import {getJson} from './api.js';
import {fill, h, perFrame, segmented} from './dom.js';
import {count, percent, short, signed} from './format.js';
import {HeadMap, visitedShare} from './head_map.js';
import {Notice} from './notice.js';
import {PriorCurve} from './prior_curve.js';
import {alibiLogit, alibiSlope, bamLogit, biasScale, CLASSES, Distribution, headClass, mu, reachAt, uniformLogit}
  from './prior_math.js';
import {PriorScatter} from './prior_scatter.js';
import {WhatIf} from './prior_what_if.js';

const COUNTERS_INTERVAL_MS = 2000;
const MIN_POWER = 6;
const MAX_POWER = 20; // a million tokens

const ENCODINGS = {nope: 'NoPE (no position encoding)', rope: 'RoPE', rope_local: 'local RoPE', sinusoidal: 'sinusoidal positions',
  t5: 'T5’s relative bias'};
const encodingName = (name) => ENCODINGS[name] ?? name;

const cell = (...content) => h('td', {}, content);

export class PriorView {
  #model = null; // /v1/prior
  #epsilon = 2 ** -20;
  #trained = 0;
  #selected = null;
  #n = 2 ** 16;
  #mode = 'log';
  #compare = {alibi: true, uniform: true};
  #whatIf = null;
  #distributions = new Map(); // sums over a million distances are worth keeping
  #drawnLength = 0; // of the thumbnails
  #visible = false;
  #timer = 0;

  constructor(root, app) {
    this.app = app;
    this.notice = new Notice();
    this.#build(root);
    this.#update = perFrame(() => this.#updateNow());
  }

  #update;

  #build(root) {
    this.title = h('h2', {});
    this.badge = h('span', {class: 'badge'});
    this.classText = h('p', {class: 'card-note'});
    this.lengthText = h('output', {});
    this.lengthInput = h('input', {type: 'range', id: 'prior-length', min: MIN_POWER, max: MAX_POWER, step: 1,
      value: Math.log2(this.#n), on: {input: () => {
        this.#n = 2 ** Number(this.lengthInput.value);
        this.#update();
      }}});
    const compareBox = (key, text) => h('label', {class: 'flag'}, h('input', {type: 'checkbox', checked: true,
      on: {change: (event) => {
        this.#compare[key] = event.target.checked;
        this.#update();
      }}}), h('i', {class: `swatch curve-${key}`}), h('span', {}, text));
    const curveHost = h('div', {});
    const whatIfHost = this.whatIfHost = h('section', {class: 'card what-if', 'aria-label': 'What if'});
    const mapHost = h('div', {});
    const scatterHost = this.scatterHost = h('section', {class: 'card scatter', 'aria-label': 'Scatter of all heads'});
    this.facts = h('tbody', {});
    this.factsHead = h('tr', {});
    this.mapNote = h('p', {class: 'card-note'});
    this.content = h('div', {class: 'prior', hidden: true},
      h('section', {class: 'card map', 'aria-label': 'Heads by layer'},
        h('div', {class: 'card-head'}, h('h2', {}, 'Heads by layer'), this.mapNote), mapHost),
      this.curveHost = h('section', {class: 'card curve', 'aria-label': 'Curve of the chosen head'},
        h('div', {class: 'card-head'}, this.title, this.badge, h('span', {class: 'spacer'}),
          segmented('Vertical axis', [['log', 'Log'], ['linear', 'Linear'], ['cumulative', 'Cumulative']], this.#mode,
            (mode) => {
              this.#mode = mode;
              this.#update();
            })),
        this.classText, curveHost,
        h('div', {class: 'curve-controls'},
          h('div', {class: 'slider length'}, h('label', {for: 'prior-length'}, h('b', {}, 'Context')), this.lengthText,
            this.lengthInput),
          h('div', {class: 'flags'}, this.alibiBox = compareBox('alibi', 'ALiBi'), compareBox('uniform', 'Uniform')))),
      whatIfHost, scatterHost,
      h('section', {class: 'card facts', 'aria-label': 'Numbers of the chosen head'},
        h('div', {class: 'card-head'}, h('h2', {}, 'In numbers')),
        h('table', {}, h('thead', {}, this.factsHead), this.facts)));
    this.loading = h('p', {class: 'loading'}, 'Reading the priors …');
    root.append(this.notice.node, this.loading, this.content);
    this.curve = new PriorCurve(curveHost);
    this.map = new HeadMap(mapHost, (layer, head) => this.#open(layer, head));
    this.scatter = new PriorScatter(scatterHost, (layer, head) => this.#open(layer, head));
    this.whatIf = new WhatIf(whatIfHost, (parameters) => {
      this.#whatIf = parameters;
      this.#update();
    });
  }

  async show(params) {
    this.#visible = true;
    const wanted = params?.length >= 2 ? {layer: Number(params[0]), head: Number(params[1])} : this.app.head;
    const isFirst = !this.#model;
    if (isFirst && !(await this.#load(params))) return;
    const changed = wanted && (wanted.layer !== this.#selected.layer || wanted.head !== this.#selected.head);
    if (changed || isFirst) this.#select(wanted ?? this.#selected);
    clearInterval(this.#timer);
    if (this.#visible) this.#timer = setInterval(() => this.#refreshCounters(), COUNTERS_INTERVAL_MS);
  }

  hide() {
    this.#visible = false;
    clearInterval(this.#timer);
  }

  #open(layer, head) {
    this.app.open(`prior/${layer}/${head}`);
  }

  async #load(params) {
    try {
      const [prior, props] = await Promise.all([getJson('/v1/prior'), this.app.info()]);
      this.#epsilon = Number(props.config?.['attention-epsilon']?.value) || this.#epsilon;
      this.#trained = props.model.meta.training_context;
      this.#model = prior;
      // The most far-sighted head is the one that other servers do not have.
      this.#selected ??= prior.heads.reduce((best, head) => (head.beta < best.beta ? head : best));
      this.loading.hidden = true;
      if (prior.position_encoding !== 'bam' && prior.position_encoding !== 'alibi') {
        this.notice.node.before(h('p', {class: 'empty'}, `This checkpoint uses ${encodingName(prior.position_encoding)}, which has no `
          + 'prior over distance to show: what is left are the tiles that attention read. Where its heads look is in ',
        h('a', {href: '#attention'}, 'Attention'), '.'));
      }
      this.notice.clear();
      this.scatterHost.hidden = prior.position_encoding !== 'bam';
      this.curveHost.hidden = !this.#hasPrior;
      // ALiBi's slopes are fixed: there are no parameters to turn, and it need not be compared with itself.
      this.whatIfHost.hidden = this.alibiBox.hidden = prior.position_encoding !== 'bam';
      this.#compare.alibi &&= prior.position_encoding === 'bam';
      this.map.hasPriors = prior.position_encoding === 'bam';
      this.content.hidden = false;
      this.map.build(prior.heads, prior.num_heads);
      this.map.setCounters(prior.heads);
      return true;
    } catch (error) {
      this.loading.hidden = true;
      this.notice.show(error, () => {
        this.loading.hidden = false;
        this.show(params);
      });
      return false;
    }
  }

  async #refreshCounters() {
    try {
      const latest = await getJson('/v1/prior', {quiet: true});
      this.notice.clear();
      if (latest.heads.length !== this.#model.heads.length) return;
      this.#model.heads.forEach((head, i) => Object.assign(head, {tiles_visited: latest.heads[i].tiles_visited,
        tiles_skipped: latest.heads[i].tiles_skipped}));
      this.map.setCounters(this.#model.heads);
      this.#showFacts();
    } catch (error) {
      if (error.kind !== 'offline') this.notice.show(error); // the page's banner says that already
    }
  }

  // A prior over distance is what BAM learns and what ALiBi fixes; the other encodings have none.
  get #hasPrior() {
    return ['bam', 'alibi'].includes(this.#model.position_encoding);
  }

  get #head() {
    const {layer, head} = this.#selected;
    return this.#model.heads.find((each) => each.layer === layer && each.head === head) ?? this.#model.heads[0];
  }

  #select(wanted) {
    this.#selected = wanted;
    const {layer, head} = this.#head; // the first one when there is no such head
    this.#selected = this.app.head = {layer, head};
    this.map.select(layer, head);
    this.#whatIf = null;
    this.whatIf.setBase(this.#head, this.#model.ssmax && this.#model.ssmax_prior);
    this.#update();
  }

  // The prior's logit of a head of this checkpoint.
  #logitOf(head, n) {
    if (this.#model.position_encoding === 'bam' || head === this.#whatIf) return bamLogit(head, this.#model, n);
    if (this.#model.position_encoding === 'alibi') return alibiLogit(alibiSlope(head.head, this.#model.num_heads));
    return uniformLogit();
  }

  #distribution(key, logit) {
    const full = `${key}@${this.#n}`;
    let found = this.#distributions.get(full);
    if (!found) {
      if (this.#distributions.size > 4) this.#distributions.clear();
      this.#distributions.set(full, found = new Distribution(logit, this.#n));
    }
    return found;
  }

  #curves() {
    const head = this.#head;
    const curves = [{name: 'this head', className: `class-${head.class}`, filled: true,
      distribution: this.#distribution(`${head.layer}/${head.head}`, this.#logitOf(head, this.#n))}];
    if (this.#whatIf) {
      curves.push({name: 'what if', className: 'curve-what-if',
        distribution: new Distribution(this.#logitOf(this.#whatIf, this.#n), this.#n)});
    }
    if (this.#compare.alibi) {
      const slope = alibiSlope(head.head, this.#model.num_heads);
      curves.push({name: 'ALiBi', className: 'curve-alibi', distribution: this.#distribution(`a${slope}`, alibiLogit(slope))});
    }
    if (this.#compare.uniform) {
      curves.push({name: 'uniform', className: 'curve-uniform', distribution: this.#distribution('u', uniformLogit())});
    }
    return curves;
  }

  #updateNow() {
    const head = this.#head;
    const n = this.#n;
    this.title.textContent = `Layer ${head.layer}, head ${head.head}`;
    const learned = this.#model.position_encoding === 'bam';
    this.badge.textContent = learned ? CLASSES[head.class].name : `ALiBi, slope ${signed(alibiSlope(head.head, this.#model.num_heads), 4)}`;
    this.badge.className = `badge class-${head.class}`;
    this.classText.textContent = learned ? CLASSES[head.class].text : 'A fixed slope: the same for every text and every training.';
    this.lengthText.textContent = `${short(n)} tokens`;
    this.lengthInput.setAttribute('aria-valuetext', `${count(n)} tokens`);
    this.curves = this.#curves();
    const marks = [];
    if (this.#trained > 0 && this.#trained < n) {
      marks.push({d: this.#trained - 1, text: `trained on ${short(this.#trained)}`, className: 'trained'});
    }
    const reach = this.#reach(head);
    if (Number.isFinite(reach)) marks.push({d: reach, text: `reach ${short(reach)}`, className: 'reach'});
    this.curve.set({n, mode: this.#mode, curves: this.curves, marks,
      label: `Prior of layer ${head.layer}, head ${head.head} over ${count(n)} tokens, ${CLASSES[head.class].name}`});
    if (this.#drawnLength !== n && this.#hasPrior) {
      this.#drawnLength = n;
      this.map.setCurves(this.#model.heads, (each) => this.#logitOf(each, n), n);
    }
    this.scatter.set({heads: this.#model.heads, numLayers: this.#model.num_layers, numHeads: this.#model.num_heads,
      selected: this.#selected, whatIf: this.#whatIf});
    this.#showFacts();
  }

  #reach(head) {
    return this.#model.position_encoding === 'bam' ? reachAt(head, this.#model, this.#n, this.#epsilon) : Infinity;
  }

  #showFacts() {
    if (!this.curves) return; // not drawn yet
    const head = this.#head;
    const columns = [head, ...(this.#whatIf ? [this.#whatIf] : [])];
    const distributions = this.curves.slice(0, columns.length).map((c) => c.distribution);
    const n = this.#n;
    const reach = (value) => (Number.isFinite(value) ? `${count(value)} tokens` : 'unlimited');
    const within = (q) => distributions.map((d) => cell(`${count(d.quantile(q))}`));
    const row = (name, cells, hint) => h('tr', {title: hint}, h('th', {scope: 'row'}, name), cells);
    fill(this.factsHead, h('th', {scope: 'col'}, ''), h('th', {scope: 'col'}, 'this head'),
      this.#whatIf && h('th', {scope: 'col', class: 'what-if-text'}, 'what if'));
    if (!this.#hasPrior) {
      fill(this.facts, row('Encoding', [cell(encodingName(this.#model.position_encoding))]), this.#countersRow(head, 1));
      this.#showMapNote();
      return;
    }
    const learned = this.#model.position_encoding === 'bam' || this.#whatIf;
    fill(this.facts,
      !learned && row('Slope', [cell(signed(alibiSlope(head.head, this.#model.num_heads), 4))]),
      ...(!learned ? [] : [
      row('θα scale', columns.map((c) => cell(signed(c.alpha)))),
      row('θβ shape', columns.map((c) => cell(signed(c.beta)))),
      row('θμ location', columns.map((c) => cell(signed(c.theta_mu), h('small', {}, ` μ ${signed(mu(c.theta_mu), 2)}`)))),
      row('s SSMax', columns.map((c) => cell(this.#model.ssmax ? signed(c.seq_scale) : 'off',
        h('small', {}, ` × ${biasScale(c, this.#model, n).toFixed(2)}`))),
      `what the prior is multiplied by for a query that sees ${count(n)} keys`),
      row('Class', columns.map((c) => cell(CLASSES[c === head ? head.class : headClass(c.beta)].name))),
      row(`Reach at ${short(n)}`, columns.map((c) => cell(reach(this.#reach(c)))),
        'beyond it no key can matter, whatever it says: its pages are freed')]),
      row('Reach, served', [cell(reach(head.reach ?? Infinity)), this.#whatIf && cell('–')],
        `what the server uses: certified for ${count(this.#model.max_model_len)} tokens`),
      row('50 % within', within(0.5)), row('90 % within', within(0.9)), row('99 % within', within(0.99)),
      this.#trained > 0 && row(`Within ${short(this.#trained)}`,
        distributions.map((d) => cell(percent(d.mass(0, this.#trained - 1)))), 'share inside the training length'),
      this.#countersRow(head, columns.length));
    this.#showMapNote();
  }

  #showMapNote() {
    const [visited, skipped] = this.#model.heads.reduce(([v, s], each) => [v + each.tiles_visited,
      s + each.tiles_skipped], [0, 0]);
    this.mapNote.textContent = visited + skipped > 0
      ? `Bars: share of key tiles that attention read. All heads: ${percent(visited / (visited + skipped))} read, `
        + `${percent(skipped / (visited + skipped))} proved negligible and skipped.`
      : 'Choose a head. Bars will show how much attention really reads, once something was generated.';
  }

  #countersRow(head, columns) {
    const share = visitedShare(head);
    return h('tr', {title: 'pairs of a query row and 64 keys since the server started'},
      h('th', {scope: 'row'}, 'Tiles visited'), h('td', {colspan: columns}, share === null ? 'none yet'
        : [percent(share), h('small', {}, ` of ${short(head.tiles_visited + head.tiles_skipped)}`),
          h('span', {class: 'share-bar', 'aria-hidden': 'true'}, h('i', {vars: {'--share': share}}))]));
  }
}
