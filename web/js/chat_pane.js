import {copyFrom} from './clipboard.js';
import {Conversations} from './conversations.js';
import {h, fill, perFrame, segmented} from './dom.js';
import {markdown} from './markdown.js';
import {asCurl, copyButton, Runner} from './runner.js';
import {tokenCounter} from './token_counter.js';
import {legend, TokenView} from './tokens.js';

const PATH = '/v1/chat/completions';

export class ChatPane {
  #messages = []; // {role, content, node}
  #available = true;
  #view = 'formatted'; // or 'tokens'
  #follows = true; // the end of the conversation stays in sight, unless somebody scrolls back
  #scrolledTo = 0;

  constructor(context) {
    this.context = context;
    this.runner = new Runner({run: 'Send', again: 'Regenerate', onRun: () => this.run(), onAgain: () => this.#again()});
    this.notice = this.runner.notice;
    this.system = h('textarea', {id: 'system', rows: 2, on: {input: () => this.refreshCount()}});
    this.input = h('textarea', {id: 'message', rows: 3, placeholder: 'Say something …',
      on: {input: () => this.refreshCount(), keydown: (event) => this.#onKey(event)}});
    this.transcript = h('ol', {class: 'transcript', 'aria-label': 'Conversation', 'aria-live': 'polite'});
    this.transcript.addEventListener('scroll', () => this.#onScroll());
    this.clear = h('button', {type: 'button', class: 'quiet', on: {click: () => this.conversations.start()}},
      'New conversation');
    this.conversations = new Conversations((conversation) => this.#show(conversation));
    this.refreshCount = tokenCounter(() => this.#tokenizeBody(), (text) => this.onCount?.(text));
    this.node = h('div', {class: 'pane'},
      this.conversations.node,
      h('details', {class: 'system'}, h('summary', {}, 'System message'),
        h('label', {class: 'visually-hidden', for: 'system'}, 'System message'), this.system),
      this.transcript,
      h('div', {class: 'output-head'}, segmented('Show answers as', [['formatted', 'Text'], ['tokens', 'Tokens']], this.#view,
        (view) => this.#setView(view)), legend()),
      this.runner.progress, this.runner.stats, this.notice.node,
      h('label', {class: 'field-label', for: 'message'}, 'Message'), this.input,
      h('div', {class: 'actions'}, this.runner.runButton, this.runner.stopButton, this.runner.againButton,
        h('span', {class: 'spacer'}), this.clear,
        copyButton(() => {
          const fields = this.context.fields();
          const messages = this.#withDraft();
          return fields && messages.length ? asCurl(PATH, this.#body(messages, fields)) : null;
        })));
    this.#show(this.conversations.current);
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
      this.notice.hint('The message is empty.', 'Say something first.');
      this.input.focus();
      return;
    }
    const fields = this.context.fields();
    if (!fields) return;
    this.#add('user', content);
    this.#store();
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
    let promptIds = null;
    const view = new TokenView('Tokens of the answer', (_, token, before) => this.context.lookAt(promptIds, token, before));
    const message = this.#add('assistant', '', view);
    const draw = perFrame(() => {
      this.#drawAnswer(message);
      this.#follow();
    });
    const summary = await this.runner.run(PATH, body, {
      onPrompt: (ids) => {
        promptIds = ids;
      },
      onDelta: (_, text, tokens) => {
        view.addText(text);
        for (const token of tokens) view.addToken(token);
        message.content = view.text;
        draw();
      },
    }, () => this.#again());
    message.content = view.text;
    this.#drawAnswer(message);
    if (!summary && view.text === '') {
      this.#messages.pop();
      message.node.remove();
    }
    this.#follow();
    this.#store();
    this.refreshCount();
  }

  // The end of the conversation, when the pane has come into sight.
  showEnd() {
    this.#follows = true;
    this.#follow();
  }

  #follow() {
    const list = this.transcript;
    if (!this.#follows) return;
    list.scrollTop = list.scrollHeight;
    this.#scrolledTo = list.scrollTop;
  }

  // An answer that grows moves the end and not the place: only a person goes back.
  #onScroll() {
    const list = this.transcript;
    const back = list.scrollTop < this.#scrolledTo - 1;
    this.#follows = list.scrollHeight - list.scrollTop - list.clientHeight < 8 || (this.#follows && !back);
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

  // `view`: of an answer that is being written; one that was kept has its text only.
  #add(role, content, view) {
    if (this.#messages.length === 0) fill(this.transcript);
    const message = {role, content, view};
    message.body = role === 'user' ? h('div', {class: 'plain-text'}, content) : h('div', {class: 'markdown'});
    const action = (text, title, run) => h('button', {type: 'button', class: 'quiet small', title, on: {click: run}}, text);
    const node = message.node = h('li', {class: `message ${role}`},
      h('span', {class: 'role'}, role === 'user' ? 'You' : 'Model'),
      h('div', {}, message.body, view?.node, h('div', {class: 'message-actions'},
        action('Copy', 'Copy this message', (event) => copyFrom(event.target, message.content)),
        role === 'user' && action('Edit', 'Ask it differently, in a branch of this conversation', () => this.#edit(message)),
        action('Branch', 'Go on from here in a new conversation', () => this.#branch(message)))));
    if (role !== 'user') this.#drawAnswer(message);
    this.#messages.push(message);
    this.transcript.append(node);
    this.showEnd();
    return message;
  }

  // Shows a kept conversation; null: an empty one.
  #show(conversation) {
    this.stop();
    this.#messages = [];
    this.runner.stats.textContent = '';
    this.notice.clear();
    fill(this.transcript);
    this.system.value = conversation?.system ?? '';
    for (const {role, content} of conversation?.messages ?? []) this.#add(role, content);
    this.runner.againButton.disabled = this.#messages.length === 0;
    this.#render();
    if (this.context.model) this.refreshCount();
  }

  #store() {
    this.conversations.store(this.#messages.map(({role, content}) => ({role, content})), this.system.value.trim());
  }

  #drawAnswer(message) {
    const tokens = this.#view === 'tokens' && message.view?.numTokens > 0;
    message.body.hidden = tokens;
    if (message.view) {
      message.view.setMode('tokens');
      message.view.node.hidden = !tokens;
    }
    if (!tokens) fill(message.body, markdown(message.content));
  }

  #setView(view) {
    this.#view = view;
    for (const message of this.#messages) if (message.role !== 'user') this.#drawAnswer(message);
  }

  #before(message) {
    return this.#messages.slice(0, this.#messages.indexOf(message)).map(({role, content}) => ({role, content}));
  }

  #edit(message) {
    this.conversations.branch(this.#before(message), this.system.value.trim());
    this.input.value = message.content;
    this.input.focus();
    this.refreshCount();
  }

  #branch(message) {
    this.conversations.branch([...this.#before(message), {role: message.role, content: message.content}],
      this.system.value.trim());
  }

  #render() {
    if (this.#messages.length) return;
    fill(this.transcript, h('li', {class: 'empty'}, h('p', {}, this.#available
      ? 'No messages yet.'
      : 'This checkpoint has no chat template, so it cannot chat. Completion works.')));
  }
}
