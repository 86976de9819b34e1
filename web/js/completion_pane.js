import {h, fill, segmented} from './dom.js';
import {linkButton} from './links.js';
import {asCurl, copyButton, Runner} from './runner.js';
import {load, save} from './store.js';
import {tokenCounter} from './token_counter.js';
import {legend, TokenView} from './tokens.js';

const PATH = '/v1/completions';
const KEPT_CHARACTERS = 100000; // of the prompt, over a reload
const SAMPLES = ['And it came to pass', 'In the beginning', 'Once upon a time'];

export class CompletionPane {
  #views = [];
  #answer = '';
  #promptIds = null;

  constructor(context) {
    this.context = context;
    this.runner = new Runner({run: 'Generate', again: 'Regenerate', onRun: () => this.run(), onAgain: () => this.run()});
    this.notice = this.runner.notice;
    this.prompt = h('textarea', {id: 'prompt', rows: 6, placeholder: 'Write the beginning of a text …',
      on: {input: () => this.refreshCount()}});
    this.prompt.value = load('prompt', '');
    this.prompt.addEventListener('input', () => save('prompt', this.prompt.value.slice(0, KEPT_CHARACTERS)));
    this.append = h('button', {type: 'button', class: 'quiet', hidden: true, on: {click: () => this.#appendAnswer()}},
      'Append to the prompt');
    this.output = h('div', {class: 'outputs'});
    this.refreshCount = tokenCounter(() => (this.prompt.value ? {prompt: this.prompt.value} : null),
      (text) => this.onCount?.(text));
    this.node = h('div', {class: 'pane'},
      h('label', {class: 'field-label', for: 'prompt'}, 'Prompt'), this.prompt,
      h('div', {class: 'actions'}, this.runner.runButton, this.runner.stopButton, this.runner.againButton,
        h('span', {class: 'spacer'}),
        copyButton(() => {
          const body = this.#body();
          return body && asCurl(PATH, body);
        }), linkButton(() => ({view: 'playground', prompt: this.prompt.value}))),
      this.notice.node, this.runner.progress,
      h('div', {class: 'output-head'},
        segmented('Show the answer as', [['tokens', 'Tokens'], ['text', 'Text']], context.tokenView,
          (mode) => this.#setView(mode)),
        legend(), h('span', {class: 'spacer'}), this.append),
      this.output, this.runner.stats);
    this.#showEmpty();
  }

  // A prompt that came with the address.
  setPrompt(text) {
    this.prompt.value = text;
    this.refreshCount();
  }

  focus() {
    this.prompt.focus();
  }

  stop() {
    return this.runner.stop();
  }

  async run() {
    if (this.runner.busy) return;
    if (!this.prompt.value) {
      this.notice.hint('The prompt is empty.', 'Write the beginning of a text, or choose one below.');
      this.prompt.focus();
      return;
    }
    const body = this.#body();
    if (!body) return;
    this.#promptIds = null;
    this.#start(body);
    const summary = await this.runner.run(PATH, body, {
      onPrompt: (ids) => {
        this.#promptIds = ids;
      },
      onDelta: (index, text, tokens) => {
        this.#views[index].addText(text);
        for (const token of tokens) this.#views[index].addToken(token);
        // Without logprobs there are no tokens to show.
        if (tokens.length === 0 && text && this.#views[index].numTokens === 0) this.#views[index].setMode('text');
      },
    }, () => this.run());
    if (!summary && this.#views.every((view) => view.text === '')) this.#showEmpty();
    this.#answer = this.#views[0]?.text ?? '';
    this.append.hidden = this.#answer === '' || body.echo === true;
  }

  #body() {
    const fields = this.context.fields();
    return fields && {model: this.context.model?.id, prompt: this.prompt.value, ...fields};
  }

  #start(body) {
    const choices = body.n ?? 1;
    this.append.hidden = true;
    this.#views = Array.from({length: choices}, (_, i) => new TokenView(`Tokens of answer ${i + 1}`,
      body.echo ? null : (_, token, before) => this.context.lookAt(this.#promptIds, token, before)));
    for (const view of this.#views) view.setMode(this.context.tokenView);
    fill(this.output, this.#views.map((view, i) => h('div', {class: 'output'},
      choices > 1 && h('span', {class: 'choice-number'}, String(i + 1)), view.node)));
  }

  #setView(mode) {
    this.context.tokenView = mode;
    for (const view of this.#views) view.setMode(view.numTokens > 0 ? mode : 'text');
  }

  #appendAnswer() {
    this.prompt.value += this.#answer;
    this.append.hidden = true;
    this.refreshCount();
    this.prompt.focus();
  }

  #showEmpty() {
    this.#views = [];
    fill(this.output, h('div', {class: 'empty'}, h('p', {}, 'The answer appears here, token by token. Or begin with:'),
      h('div', {class: 'chips'}, SAMPLES.map((text) => h('button', {type: 'button', class: 'chip', on: {click: () => {
        this.prompt.value = text;
        this.refreshCount();
        this.run();
      }}}, text)))));
  }
}
