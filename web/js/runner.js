// What completion and chat have in common: the buttons, one run at a time, progress while the prompt is read.

import {apiKey, ApiError} from './api.js';
import {copyFrom} from './clipboard.js';
import {h} from './dom.js';
import {count, seconds} from './format.js';
import {describe, generate} from './generation.js';
import {Notice} from './notice.js';

// Prompts shorter than this are read before a bar could be seen.
const SHOW_PROGRESS_FROM = 2048;

export class Runner {
  #abort = null;

  // labels: {run, again}; callbacks: onRun(), onAgain()
  constructor({run, again, onRun, onAgain}) {
    this.notice = new Notice();
    this.runButton = h('button', {type: 'button', class: 'primary', title: 'Ctrl+Enter', on: {click: onRun}}, run);
    this.stopButton = h('button', {type: 'button', title: 'Esc', disabled: true, on: {click: () => this.stop()}}, 'Stop');
    this.againButton = h('button', {type: 'button', disabled: true, on: {click: onAgain}}, again);
    this.bar = h('progress', {max: 1, 'aria-label': 'Prompt read'});
    this.barText = h('span', {});
    this.progress = h('div', {class: 'prefill', hidden: true}, this.bar, this.barText);
    this.stats = h('p', {class: 'stats', role: 'status'});
  }

  get busy() {
    return this.#abort !== null;
  }

  // True when there was something to stop.
  stop() {
    this.#abort?.abort();
    return this.busy;
  }

  // handlers as in generate(). Resolves to the summary, or null after an error was shown.
  async run(path, body, handlers, retry) {
    this.notice.clear();
    this.#abort = new AbortController();
    this.#setBusy(true);
    this.stats.textContent = 'waiting for the first token …';
    let seen = false;
    try {
      const summary = await generate({path, body, signal: this.#abort.signal, ...handlers,
        onProgress: (progress) => this.#showProgress(progress),
        onDelta: (...args) => {
          if (!seen) {
            seen = true;
            this.progress.hidden = true;
            this.stats.textContent = 'writing …';
          }
          handlers.onDelta(...args);
        }});
      this.stats.textContent = describe(summary);
      return summary;
    } catch (error) {
      this.stats.textContent = '';
      this.notice.show(error instanceof ApiError ? error : new ApiError('http', error.message), retry);
      return null;
    } finally {
      this.#abort = null;
      this.progress.hidden = true;
      this.#setBusy(false);
    }
  }

  #setBusy(busy) {
    const hadFocus = document.activeElement;
    this.runButton.disabled = busy;
    this.stopButton.disabled = !busy;
    this.againButton.disabled = busy;
    // A disabled button loses the focus; keyboard users go on with the one that matters now.
    if (busy && hadFocus === this.runButton) this.stopButton.focus();
    if (!busy && hadFocus === this.stopButton) this.runButton.focus();
  }

  #showProgress(progress) {
    if (progress.total < SHOW_PROGRESS_FROM) return;
    this.progress.hidden = false;
    this.bar.value = progress.processed / progress.total;
    this.barText.textContent = `${count(progress.processed)} of ${count(progress.total)} tokens read`
      + (progress.eta_ms > 0 ? `, first token in ${seconds(progress.eta_ms / 1000)}` : '');
  }
}

// The request as a command line, ready to paste.
export function asCurl(path, body) {
  const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
  const auth = apiKey() ? " \\\n  -H 'Authorization: Bearer '\"$BAM_API_KEY\"" : '';
  return `curl -N ${quote(location.origin + path)}${auth} \\\n  -H 'Content-Type: application/json' \\\n  -d `
    + quote(JSON.stringify(body, null, 1));
}

export function copyButton(text) {
  const button = h('button', {type: 'button', class: 'quiet', title: 'Copy this request as a curl command'},
    'Copy as curl');
  button.addEventListener('click', () => {
    const value = text();
    if (value !== null) copyFrom(button, value);
  });
  return button;
}
