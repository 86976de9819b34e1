// The engine at work: live requests, pages, rates and latencies, once per second while somebody looks.

import {ApiError, getHealth, getJson, getText, ownRequests, postJson} from './api.js';
import {exportButtons} from './chart_export.js';
import {TimeChart} from './charts.js';
import {fill, h} from './dom.js';
import {bytes, count, percent, rate, seconds, short} from './format.js';
import {Notice} from './notice.js';
import {histogramDelta, mean, Metrics, quantile} from './prometheus.js';
import {PromptCounter} from './prompt_counter.js';
import {RequestList} from './request_list.js';
import {StageTable} from './stage_table.js';

const INTERVAL_MS = 1000;
const LATENCY_WINDOW_S = 10;

export class EngineView {
  #timer = 0;
  #running = false;
  #history = []; // {timeS, metrics, computed} of the last LATENCY_WINDOW_S
  #prompts = new PromptCounter();

  constructor(root) {
    this.notice = new Notice();
    this.requests = new RequestList((id) => this.#cancel(id));
    this.tiles = h('dl', {class: 'tiles'});
    this.pages = h('div', {class: 'pages'});
    this.pagesText = h('ul', {class: 'legend'});
    this.pagesNote = h('p', {class: 'card-note'});
    this.stages = new StageTable();
    this.state = h('p', {class: 'card-note', role: 'status'}, 'reading …');
    const chart = (options) => {
      const host = h('section', {class: 'card chart-card', 'aria-label': options.title});
      const made = new TimeChart(host, options);
      host.append(exportButtons(options.title.toLowerCase().replaceAll(' ', '-'), {chart: made.chart, rows: () => made.rows()}));
      return {host, chart: made};
    };
    const throughput = chart({title: 'Tokens per second', format: rate,
      series: [{name: 'prompt', className: 'series-a'}, {name: 'generated', className: 'series-b'}]});
    const ttft = chart({title: 'Time to first token', format: seconds,
      series: [{name: 'mean', className: 'series-a'}, {name: 'p95', className: 'series-c'}]});
    const itl = chart({title: 'Between tokens', format: seconds,
      series: [{name: 'mean', className: 'series-b'}, {name: 'p95', className: 'series-c'}]});
    const load = chart({title: 'Requests', format: (v) => String(Math.round(v * 10) / 10),
      series: [{name: 'running', className: 'series-b'}, {name: 'waiting', className: 'series-c'}]});
    this.charts = {throughput: throughput.chart, ttft: ttft.chart, itl: itl.chart, load: load.chart};
    root.append(this.notice.node, h('div', {class: 'engine'},
      h('section', {class: 'card overview', 'aria-label': 'Overview'}, this.tiles),
      h('section', {class: 'card', 'aria-labelledby': 'live-title'},
        h('div', {class: 'card-head'}, h('h2', {id: 'live-title'}, 'Live requests'), this.state), this.requests.node),
      h('section', {class: 'card', 'aria-labelledby': 'pages-title'},
        h('div', {class: 'card-head'}, h('h2', {id: 'pages-title'}, 'KV pages'), this.pagesNote), this.pages,
        this.pagesText),
      this.stages.node,
      h('div', {class: 'chart-grid'}, throughput.host, ttft.host, itl.host, load.host)));
  }

  show() {
    if (this.#running) return;
    this.#running = true;
    this.#history = [];
    this.#prompts.reset();
    for (const chart of Object.values(this.charts)) chart.gap();
    this.#poll();
  }

  hide() {
    this.#running = false;
    clearTimeout(this.#timer);
  }

  async #poll() {
    clearTimeout(this.#timer);
    try {
      const [text, live, health] = await Promise.all([getText('/metrics'), getJson('/v1/requests'), getHealth()]);
      this.notice.clear();
      this.#show(new Metrics(text), live, health);
    } catch (error) {
      this.state.textContent = 'no reading';
      // The page's banner tells of a server that does not answer.
      if (error.kind !== 'offline') {
        this.notice.show(error instanceof ApiError ? error : new ApiError('http', error.message),
          error.kind === 'auth' ? () => this.show() : undefined);
      }
      if (error.kind === 'auth') {
        this.hide();
        return;
      }
    }
    if (this.#running) this.#timer = setTimeout(() => this.#poll(), INTERVAL_MS);
  }

  async #cancel(id) {
    try {
      await postJson(`/v1/requests/${encodeURIComponent(id)}/cancel`, {});
    } catch (error) {
      // It may have finished by itself in the meantime.
      if (error.status !== 404) this.notice.show(error);
    }
    if (this.#running) this.#poll();
  }

  #show(metrics, live, health) {
    const timeS = performance.now() / 1000;
    const previous = this.#history.at(-1);
    if (previous && metrics.value('bam_steps_total') < previous.metrics.value('bam_steps_total')) {
      this.#history = []; // another server process
      this.#prompts.reset();
    }
    const computed = this.#prompts.add(metrics, live.data);
    this.#history.push({timeS, metrics, computed});
    while (this.#history.length > 2 && this.#history[0].timeS < timeS - LATENCY_WINDOW_S) this.#history.shift();
    const rates = this.#showRates();
    this.#showLatency(metrics, timeS);
    this.charts.load.push(timeS, [live.running, live.waiting]);
    this.requests.set(live.data, ownRequests);
    this.state.textContent = live.waiting > 0
      ? `${count(live.running)} running, ${count(live.waiting)} waiting with ${short(live.queued_tokens)} tokens, `
        + `${seconds(live.queued_work_seconds)} of work ahead`
      : `${count(live.running)} running, none waiting`;
    this.#showPages(metrics);
    const [oldest] = this.#history;
    this.stages.set(metrics, oldest.metrics, timeS - oldest.timeS);
    this.#showTiles(metrics, computed, health, rates);
  }

  #showRates() {
    const [before, now] = this.#history.slice(-2);
    if (!now) return {prompt: 0, generated: 0};
    const elapsedS = now.timeS - before.timeS;
    const generated = (reading) => reading.metrics.value('bam_generation_tokens_total');
    const rates = {prompt: before.computed === null ? null : (now.computed - before.computed) / elapsedS,
      generated: Math.max(0, generated(now) - generated(before)) / elapsedS};
    this.charts.throughput.push(now.timeS, [rates.prompt, rates.generated]);
    return {...rates, prompt: rates.prompt ?? 0};
  }

  #showLatency(metrics, timeS) {
    const oldest = this.#history[0].metrics;
    for (const [chart, name] of [[this.charts.ttft, 'bam_time_to_first_token_seconds'],
      [this.charts.itl, 'bam_inter_token_latency_seconds']]) {
      const histogram = histogramDelta(metrics.histogram(name), oldest.histogram(name));
      chart.push(timeS, [mean(histogram), quantile(histogram, 0.95)]);
    }
  }

  #showPages(metrics) {
    const states = ['used', 'cached', 'free'].map((state) => [state, metrics.value('bam_kv_pages', {state})]);
    const total = states.reduce((sum, [, value]) => sum + value, 0);
    fill(this.pages, states.map(([state, value]) => h('i', {class: `pages-${state}`,
      vars: {'flex-grow': total > 0 ? String(value / total) : '0'}})));
    fill(this.pagesText, states.map(([state, value]) => h('li', {}, h('i', {class: `swatch pages-${state}`}), `${state} `,
      h('b', {}, count(value)), total > 0 && h('small', {}, ` ${percent(value / total)}`))));
    this.pagesNote.textContent = `${count(total)} pages, room for ${count(metrics.value('bam_kv_capacity_tokens'))} tokens`
      + ' when none is freed early';
  }

  #showTiles(metrics, computed, health, rates) {
    const queries = metrics.value('bam_prefix_cache_queries_total');
    const hits = metrics.value('bam_prefix_cache_hits_total');
    const visited = metrics.value('bam_attention_tiles_total', {outcome: 'visited'});
    const skipped = metrics.value('bam_attention_tiles_total', {outcome: 'skipped'});
    const finished = metrics.value('bam_requests_finished_total');
    const tile = (name, value, note) => h('div', {}, h('dt', {}, name), h('dd', {}, value, h('small', {}, note)));
    fill(this.tiles,
      tile('Reading', rate(rates.prompt), `prompt tokens/s, ${short(computed ?? 0)} in all`),
      tile('Writing', rate(rates.generated), `tokens/s, ${short(metrics.value('bam_generation_tokens_total'))} in all`),
      tile('Prefix cache', queries > 0 ? percent(hits / queries) : '–',
        queries > 0 ? `${short(hits)} of ${short(queries)} tokens found` : 'nothing looked up yet'),
      tile('Tiles skipped', visited + skipped > 0 ? percent(skipped / (visited + skipped)) : '–',
        'of attention, by the prior'),
      tile('Freed by reach', bytes(metrics.value('bam_kv_reach_freed_bytes_total')), 'of KV, no longer visible'),
      tile('Finished', count(finished), `${count(metrics.value('bam_preemptions_total'))} preempted, up ${seconds(health.uptime_seconds)}`));
  }
}
