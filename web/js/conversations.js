// The conversations that this browser keeps, and the bar that chooses among them.

import {h, fill} from './dom.js';
import {download, load, save} from './store.js';

const SLOT = 'conversations';
const MOST = 100; // older ones go first

// Unique in this list; the browser's own ids need HTTPS.
const newId = () => `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
const nameOf = (text) => text.trim().replace(/\s+/g, ' ').slice(0, 40) || 'New conversation';

export class Conversations {
  #list = load(SLOT, []).filter((each) => Array.isArray(each?.messages)); // {id, name, system, messages}, newest first
  #current = null;

  // onOpen(conversation): show it
  constructor(onOpen) {
    this.onOpen = onOpen;
    this.choice = h('select', {id: 'conversation', on: {change: () => this.open(this.choice.value)}});
    const button = (text, run, title) => h('button', {type: 'button', class: 'quiet', title, on: {click: run}}, text);
    this.buttons = [button('Rename', () => this.#rename()), button('Delete', () => this.#delete()),
      button('JSON', () => this.#export('json'), 'Download the conversation as JSON'),
      button('Markdown', () => this.#export('md'), 'Download the conversation as Markdown')];
    this.node = h('div', {class: 'conversations'}, h('label', {class: 'visually-hidden', for: 'conversation'}, 'Conversation'),
      this.choice, this.buttons);
    this.#current = this.#list[0] ?? null;
    this.#render();
  }

  get current() {
    return this.#current;
  }

  open(id) {
    this.#current = this.#list.find((each) => each.id === id) ?? null;
    this.#render();
    this.onOpen(this.#current);
  }

  start() {
    this.#current = null;
    this.#render();
    this.onOpen(null);
  }

  // A new conversation that begins with these messages.
  branch(messages, system) {
    const name = this.#current ? `${this.#current.name.slice(0, 34)} (branch)` : nameOf(messages[0]?.content ?? '');
    this.#current = {id: newId(), name, system, messages};
    this.#keep();
    this.onOpen(this.#current);
  }

  // What is on the screen now.
  store(messages, system) {
    if (messages.length === 0 && this.#current === null) return;
    this.#current ??= {id: newId(), name: nameOf(messages[0].content)};
    Object.assign(this.#current, {system, messages});
    this.#keep();
  }

  #keep() {
    this.#list = [this.#current, ...this.#list.filter((each) => each !== this.#current)].slice(0, MOST);
    while (!save(SLOT, this.#list) && this.#list.length > 1) this.#list.pop();
    this.#render();
  }

  #render() {
    fill(this.choice, h('option', {value: ''}, 'New conversation'),
      this.#list.map((each) => h('option', {value: each.id}, each.name)));
    this.choice.value = this.#current?.id ?? '';
    for (const button of this.buttons) button.disabled = this.#current === null;
  }

  #rename() {
    const name = window.prompt('Name of the conversation', this.#current.name)?.trim();
    if (!name) return;
    this.#current.name = name.slice(0, 80);
    this.#keep();
  }

  #delete() {
    if (!window.confirm(`Delete “${this.#current.name}”? It is kept nowhere else.`)) return;
    this.#list = this.#list.filter((each) => each !== this.#current);
    save(SLOT, this.#list);
    this.start();
  }

  #export(kind) {
    const {name, system, messages} = this.#current;
    const all = [...(system ? [{role: 'system', content: system}] : []), ...messages];
    const file = `${name.replace(/[^\w-]+/g, '-').replace(/^-+|-+$/g, '') || 'conversation'}.${kind}`;
    if (kind === 'json') download(file, 'application/json', `${JSON.stringify({name, messages: all}, null, 2)}\n`);
    else download(file, 'text/markdown', all.map(({role, content}) => `## ${role}\n\n${content}\n`).join('\n'));
  }
}
