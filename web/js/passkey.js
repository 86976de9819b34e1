// "Hide a passkey": builds a long prompt from token ids, shows how it is read, and says whether the answer is right. The
// progress bar is the haystack itself, with the needle where it was put.

import {ApiError, postJson} from './api.js';
import {field, fill, h, select} from './dom.js';
import {count, percent, rate, seconds, short} from './format.js';
import {generate} from './generation.js';
import {Notice} from './notice.js';
import {assemble, encodePieces, isHit, keySpans, randomKey} from './passkey_prompt.js';
import {TokenView, visible} from './tokens.js';

const LENGTHS = [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576];
const ANSWER_TOKENS = 8; // five digits, perhaps a space of its own, and what follows
const PATH = '/v1/completions';

const encode = async (text) => (await postJson('/tokenize', {prompt: text, add_special_tokens: false})).tokens;

export class PasskeyPanel {
  #abort = null;

  constructor(app) {
    this.app = app;
    this.notice = new Notice();
    this.length = select(LENGTHS.map((n) => [n, short(n)]), 4096, () => this.#placeNeedle(), {id: 'passkey-length'});
    this.depth = h('input', {type: 'range', min: 0, max: 100, value: 50, on: {input: () => this.#placeNeedle()}});
    this.depthText = h('output', {});
    this.key = h('input', {type: 'text', inputmode: 'numeric', maxlength: 5, value: randomKey(), autocomplete: 'off'});
    this.runButton = h('button', {type: 'button', class: 'primary', id: 'passkey-run', on: {click: () => this.run()}},
      'Hide and ask');
    this.stopButton = h('button', {type: 'button', disabled: true, on: {click: () => this.stop()}}, 'Stop');
    this.dice = h('button', {type: 'button', class: 'quiet', on: {click: () => {
      this.key.value = randomKey();
    }}}, 'Another number');
    this.#buildHaystack();
    this.result = h('div', {class: 'passkey-result', role: 'status'});
    this.history = h('tbody', {});
    this.historyTable = h('div', {class: 'table-scroll', hidden: true}, h('table', {class: 'runs'},
      h('thead', {}, h('tr', {}, ['Result', 'Length', 'Depth', 'Key', 'Answer', 'First token', 'Tokens/s', 'Cached']
        .map((text) => h('th', {scope: 'col'}, text)))), this.history));
    this.node = h('section', {class: 'card passkey', 'aria-labelledby': 'passkey-title'},
      h('div', {class: 'card-head'}, h('h2', {id: 'passkey-title'}, 'Hide a passkey'),
        h('p', {class: 'card-note'}, 'A number between thousands of irrelevant sentences, in the words of the paper. Greedy decoding; all five digits must be right.')),
      h('div', {class: 'passkey-form'}, field('Prompt, tokens', this.length),
        field(h('span', {}, 'Depth ', this.depthText), this.depth), field('Number', this.key),
        h('div', {class: 'actions'}, this.runButton, this.stopButton, this.dice)),
      this.notice.node, this.haystack, this.progressText, this.result, this.historyTable);
    this.#placeNeedle();
  }

  #buildHaystack() {
    this.done = h('i', {class: 'hay-done'});
    this.cached = h('i', {class: 'hay-cached'});
    this.needle = h('i', {class: 'hay-needle'});
    this.haystack = h('div', {class: 'haystack', role: 'progressbar', 'aria-label': 'Prompt read', 'aria-valuemin': 0,
      'aria-valuemax': 100, 'aria-valuenow': 0}, this.done, this.cached, this.needle);
    this.progressText = h('p', {class: 'stats'}, 'The line with the number goes to the mark.');
  }

  setLimit(maxModelLen) {
    for (const option of this.length.options) {
      const fits = Number(option.value) + ANSWER_TOKENS <= maxModelLen;
      option.disabled = !fits;
      option.textContent = short(Number(option.value)) + (fits ? '' : ' (more than the server allows)');
    }
  }

  // True when there was something to stop.
  stop() {
    if (!this.#abort) return false;
    this.#abort.abort();
    return true;
  }

  #placeNeedle() {
    this.depthText.textContent = `${this.depth.value} %`;
    if (!this.#abort) this.needle.style.setProperty('--at', this.depth.value / 100);
  }

  async run() {
    const key = this.key.value.trim();
    if (this.#abort) return;
    if (!/^\d{5}$/.test(key)) {
      this.notice.show(new ApiError('http', 'The number must have five digits.'));
      this.key.focus();
      return;
    }
    this.notice.clear();
    fill(this.result);
    this.#setBusy(true);
    this.#abort = new AbortController();
    const {signal} = this.#abort;
    try {
      const length = Number(this.length.value);
      const depth = this.depth.value / 100;
      this.#show(0, 0, 'building the prompt …');
      const pieces = await encodePieces(encode, key);
      const {ids, lineAt} = assemble(pieces, length, depth);
      this.needle.style.setProperty('--at', lineAt / length);
      await this.#ask(ids, {key, length, depth, spans: keySpans(pieces, await encode(key), lineAt)}, signal);
    } catch (error) {
      if (!signal.aborted) {
        this.progressText.textContent = '';
        this.notice.show(error instanceof ApiError ? error : new ApiError('http', error.message), () => this.run());
      }
    } finally {
      if (signal.aborted) this.progressText.textContent = 'Stopped. What was read stays in the prefix cache.';
      this.#abort = null;
      this.#setBusy(false);
    }
  }

  async #ask(ids, task, signal) {
    // A million ids: written by hand, because JSON.stringify would first make an array of boxed numbers.
    const body = `{"prompt":[${ids.join(',')}],"temperature":0,"max_tokens":${ANSWER_TOKENS},"logprobs":5,`
      + '"stream":true,"return_progress":true,"return_token_ids":true,'
      + '"stream_options":{"include_usage":true}}';
    const look = (_, token, before) => this.app.lookAt({ids: [...ids, ...before], spans: task.spans,
      title: `Where the model looked when it wrote “${visible(token.text)}” of its answer, ${count(task.length)} tokens into the text.`});
    const view = new TokenView('Tokens of the answer', look);
    view.setMode('tokens');
    let firstDigit = null; // of the answer, and what the model wrote before it
    const answerIds = [];
    const started = performance.now();
    this.#show(0, 0, `sending ${count(task.length)} tokens …`);
    const summary = await generate({path: PATH, body, signal,
      onProgress: (progress) => this.#onProgress(progress, started),
      onDelta: (_, text, tokens) => {
        if (view.numTokens === 0) fill(this.result, h('p', {class: 'answer'}, 'The pass key is', view.node));
        view.addText(text);
        for (const token of tokens) {
          if (firstDigit === null && /\d/.test(token.text)) firstDigit = {token, before: answerIds.slice()};
          answerIds.push(token.id);
          view.addToken(token);
        }
      }});
    if (summary.stopped) return;
    this.#finish(task, view.text, summary);
    if (!firstDigit) return;
    this.result.append(h('p', {}, h('button', {type: 'button', id: 'passkey-who', on: {click: () => this.app.lookAt({
      ids: [...ids, ...firstDigit.before], spans: task.spans, title: 'Who found it? The heads by the weight that they gave to the hidden '
        + `number when the model wrote “${visible(firstDigit.token.text)}”, ${count(task.length)} tokens into the text.`})}},
    'Who found it?')));
  }

  #onProgress(progress, started) {
    const elapsedS = (performance.now() - started) / 1000;
    const speed = (progress.processed - progress.cache) / Math.max(1e-3, progress.time_ms / 1000);
    this.#show(progress.processed / progress.total, progress.cache / progress.total,
      `${count(progress.processed)} of ${count(progress.total)} tokens · ${rate(speed)} tokens/s · `
      + `${seconds(elapsedS)} so far`
      + (progress.processed < progress.total ? ` · ${seconds(progress.eta_ms / 1000)} to go` : ''));
  }

  #show(done, cached, text) {
    this.done.style.setProperty('--at', done);
    this.cached.style.setProperty('--at', cached);
    this.haystack.setAttribute('aria-valuenow', Math.round(done * 100));
    this.haystack.setAttribute('aria-valuetext', text);
    this.progressText.textContent = text;
  }

  #finish(task, text, summary) {
    const hit = isHit(text, task.key);
    const readTokens = task.length - summary.cachedTokens;
    const speed = readTokens / Math.max(1e-3, summary.ttftS ?? summary.totalS);
    this.#show(1, summary.cachedTokens / task.length, `${count(task.length)} tokens read in ${seconds(summary.ttftS)}`
      + ` (${rate(speed)} tokens/s${summary.cachedTokens ? `, ${percent(summary.cachedTokens / task.length)} from the prefix cache` : ''})`);
    this.result.append(h('p', {class: `verdict ${hit ? 'right' : 'wrong'}`, 'data-verdict': hit ? 'right' : 'wrong'},
      h('strong', {}, hit ? 'Right.' : 'Wrong.'), hit
        ? ` ${task.key} was found at ${Math.round(task.depth * 100)} % depth of ${count(task.length)} tokens in ${seconds(summary.totalS)}.`
        : ` It was ${task.key}. ${seconds(summary.totalS)} for ${count(task.length)} tokens.`));
    this.history.prepend(h('tr', {}, h('td', {class: hit ? 'right' : 'wrong'}, hit ? 'right' : 'wrong'),
      h('td', {}, short(task.length)), h('td', {}, `${Math.round(task.depth * 100)} %`),
      h('td', {}, task.key), h('td', {}, text.trim().slice(0, 12) || '–'), h('td', {}, seconds(summary.ttftS)),
      h('td', {}, rate(speed)), h('td', {}, percent(summary.cachedTokens / task.length))));
    this.historyTable.hidden = false;
  }

  #setBusy(busy) {
    const hadFocus = document.activeElement;
    this.runButton.disabled = busy;
    this.stopButton.disabled = !busy;
    this.length.disabled = busy;
    this.depth.disabled = busy;
    this.key.disabled = busy;
    this.dice.disabled = busy;
    if (busy && hadFocus === this.runButton) this.stopButton.focus();
    if (!busy && hadFocus === this.stopButton) this.runButton.focus();
  }
}
