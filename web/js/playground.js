// Completion and chat beside the sampling fields, and the passkey below.

import {ChatPane} from './chat_pane.js';
import {CompletionPane} from './completion_pane.js';
import {h, segmented} from './dom.js';
import {count} from './format.js';
import {PasskeyPanel} from './passkey.js';
import {FieldError, SamplingForm} from './sampling.js';
import {load, save} from './store.js';
import {visible} from './tokens.js';

export class PlaygroundView {
  #mode = load('mode', 'completion') === 'chat' ? 'chat' : 'completion';
  #panes;
  #sampling = new SamplingForm();
  #ready = false;

  constructor(root, app) {
    this.app = app;
    const context = {app, model: null, tokenView: 'tokens', fields: () => this.#fields(),
      lookAt: (promptIds, token, before) => this.#lookAt(promptIds, token, before)};
    this.context = context;
    this.#panes = {completion: new CompletionPane(context), chat: new ChatPane(context)};
    this.passkey = new PasskeyPanel(app);
    this.count = h('p', {class: 'token-count', 'aria-live': 'polite'});
    const modes = this.modes = segmented('Kind of request', [['completion', 'Completion'], ['chat', 'Chat']], this.#mode,
      (mode) => this.#setMode(mode));
    for (const pane of Object.values(this.#panes)) pane.onCount = (text) => this.#showCount(pane, text);
    root.append(h('div', {class: 'playground'},
      h('div', {class: 'card pane-card'},
        h('div', {class: 'card-head'}, modes, this.count),
        Object.values(this.#panes).map((pane) => pane.node)),
      h('aside', {class: 'card side', 'aria-label': 'Settings'}, this.#sampling.node),
      this.passkey.node));
    this.#setMode(this.#mode);
  }

  async show(params, prompt) {
    if (prompt) {
      this.#panes.completion.setPrompt(prompt);
      if (this.#mode !== 'completion') this.modes.querySelector('input[value=completion]').click();
    }
    if (this.#ready) return;
    this.#panes.chat.showEnd();
    try {
      const props = await this.app.info();
      this.#ready = true;
      this.#panes[this.#mode].notice.clear();
      this.context.model = props.model;
      this.#sampling.setDefaults(props.default_generation_settings);
      this.#panes.chat.setAvailable(props.model.meta.chat);
      this.passkey.setLimit(props.engine.max_model_len);
      this.#panes[this.#mode].refreshCount();
    } catch (error) {
      this.#panes[this.#mode].notice.show(error, () => this.show());
    }
  }

  // True when the key was used.
  onKey(event) {
    const pane = this.#panes[this.#mode];
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
      pane.run();
      return true;
    }
    if (event.key === 'Escape') return pane.stop() || this.passkey.stop();
    if (event.key === '/' && !event.target.closest?.('input, textarea, select')) {
      pane.focus();
      return true;
    }
    return false;
  }

  // The row that produced a token is that of the token before it.
  #lookAt(promptIds, token, before) {
    if (!promptIds) return;
    this.app.lookAt({ids: [...promptIds, ...before], spans: [],
      title: `Where the model looked when it wrote “${visible(token.text)}”, token ${count(promptIds.length + before.length)} of the text.`});
  }

  #setMode(mode) {
    this.#mode = mode;
    save('mode', mode);
    for (const [name, pane] of Object.entries(this.#panes)) pane.node.hidden = name !== mode;
    this.#panes.chat.showEnd();
    this.#sampling.setMode(mode);
    this.count.textContent = '';
    if (this.#ready) this.#panes[mode].refreshCount();
  }

  #showCount(pane, text) {
    if (pane === this.#panes[this.#mode]) this.count.textContent = text;
  }

  // The form's fields, or null after it showed what is wrong.
  #fields() {
    const pane = this.#panes[this.#mode];
    try {
      return {...this.#sampling.read(this.#mode), stream: true, stream_options: {include_usage: true},
        return_progress: true, return_token_ids: true};
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
      error.control.closest('details').open = true;
      error.control.setAttribute('aria-invalid', 'true');
      error.control.addEventListener('input', () => error.control.removeAttribute('aria-invalid'), {once: true});
      error.control.focus();
      pane.notice.show(error);
      return null;
    }
  }
}
