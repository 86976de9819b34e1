import {h, fill} from './dom.js';
import {asCurl, copyButton, Runner} from './runner.js';
import {tokenCounter} from './token_counter.js';
import {legend, TokenView} from './tokens.js';

const PATH = '/v1/chat/completions';

export class ChatPane {
  #messages = []; // {role, content, node}
  #available = true;

  constructor(context) {
    this.context = context;
    this.runner = new Runner({run: 'Send', again: 'Regenerate', onRun: () => this.run(), onAgain: () => this.#again()});
    this.notice = this.runner.notice;
    this.system = h('textarea', {id: 'system', rows: 2, on: {input: () => this.refreshCount()}});
    this.input = h('textarea', {id: 'message', rows: 3, placeholder: 'Say something …',
      on: {input: () => this.refreshCount(), keydown: (event) => this.#onKey(event)}});
    this.transcript = h('ol', {class: 'transcript', 'aria-label': 'Conversation', 'aria-live': 'polite'});
    this.clear = h('button', {type: 'button', class: 'quiet', on: {click: () => this.#clear()}}, 'New conversation');
    this.refreshCount = tokenCounter(() => this.#tokenizeBody(), (text) => this.onCount?.(text));
    this.node = h('div', {class: 'pane'},
      h('details', {class: 'system'}, h('summary', {}, 'System message'),
        h('label', {class: 'visually-hidden', for: 'system'}, 'System message'), this.system),
      this.transcript, legend(), this.runner.progress, this.runner.stats, this.notice.node,
      h('label', {class: 'field-label', for: 'message'}, 'Message'), this.input,
      h('div', {class: 'actions'}, this.runner.runButton, this.runner.stopButton, this.runner.againButton,
        h('span', {class: 'spacer'}), this.clear,
        copyButton(() => {
          const fields = this.context.fields();
          const messages = this.#withDraft();
          return fields && messages.length ? asCurl(PATH, this.#body(messages, fields)) : null;
        })));
    this.#render();
  }

  setAvailable(available) {
    this.#available = available;
    this.input.disabled = !available;
    this.runner.runButton.disabled = !available;
    this.#render();
  }

  focus() {
    this.input.focus();
  }

  stop() {
    return this.runner.stop();
  }

  run() {
    const content = this.input.value.trim();
    if (this.runner.busy || !this.#available) return;
    if (!content) {
      this.input.focus();
      return;
    }
    const fields = this.context.fields();
    if (!fields) return;
    this.#add('user', content);
    this.input.value = '';
    this.#answer(fields);
  }

  // Enter sends, Shift+Enter makes a line; Ctrl+Enter works everywhere and is handled with the other shortcuts.
  #onKey(event) {
    if (event.key !== 'Enter' || event.shiftKey || event.ctrlKey || event.metaKey || event.isComposing) return;
    event.preventDefault();
    this.run();
  }

  #again() {
    const fields = this.context.fields();
    if (this.runner.busy || !fields) return;
    while (this.#messages.at(-1)?.role === 'assistant') this.#messages.pop().node.remove();
    if (this.#messages.length) this.#answer(fields);
  }

  async #answer(fields) {
    // One conversation has one thread.
    const body = this.#body(this.#sendable(), {...fields, n: undefined});
    const view = new TokenView('Tokens of the answer');
    view.setMode(this.context.tokenView);
    const message = this.#add('assistant', '', view.node);
    const summary = await this.runner.run(PATH, body, {
      onDelta: (_, text, tokens) => {
        const list = this.transcript;
        const follows = list.scrollHeight - list.scrollTop - list.clientHeight < 40; // unless somebody scrolled back
        view.addText(text);
        for (const token of tokens) view.addToken(token);
        if (view.numTokens === 0) view.setMode('text');
        if (follows) list.scrollTop = list.scrollHeight;
      },
    }, () => this.#again());
    message.content = view.text;
    if (!summary && view.text === '') {
      this.#messages.pop();
      message.node.remove();
    }
    this.refreshCount();
  }

  #body(messages, fields) {
    return {model: this.context.model?.id, messages, ...fields};
  }

  #sendable() {
    const system = this.system.value.trim();
    return [...(system ? [{role: 'system', content: system}] : []),
      ...this.#messages.map(({role, content}) => ({role, content}))];
  }

  #withDraft() {
    const draft = this.input.value.trim();
    return [...this.#sendable(), ...(draft ? [{role: 'user', content: draft}] : [])];
  }

  #tokenizeBody() {
    const messages = this.#withDraft();
    return this.#available && messages.length ? {messages} : null;
  }

  #add(role, content, body) {
    if (this.#messages.length === 0) fill(this.transcript);
    const node = h('li', {class: `message ${role}`}, h('span', {class: 'role'}, role === 'user' ? 'You' : 'Model'),
      body ?? h('div', {class: 'plain-text'}, content));
    const message = {role, content, node};
    this.#messages.push(message);
    this.transcript.append(node);
    this.transcript.scrollTop = this.transcript.scrollHeight;
    return message;
  }

  #clear() {
    this.stop();
    this.#messages = [];
    this.runner.stats.textContent = '';
    this.notice.clear();
    this.#render();
    this.refreshCount();
    this.input.focus();
  }

  #render() {
    if (this.#messages.length) return;
    fill(this.transcript, h('li', {class: 'empty'}, h('p', {}, this.#available
      ? 'No messages yet.'
      : 'This checkpoint has no chat template, so it cannot chat. Completion works.')));
  }
}
