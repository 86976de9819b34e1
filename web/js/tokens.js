// Generated text token by token: the colour is the probability that the model gave the token; hover or focus shows what
// else it might have said.

import {h, fill, rovingFocus} from './dom.js';
import {percent} from './format.js';

// Spaces and line ends are worth seeing when one looks at single tokens.
export const visible = (text) =>
  text === '' ? '∅' : text.replaceAll(' ', '␣').replaceAll('\n', '↵').replaceAll('\t', '⇥');

let popover = null;

function alternativeRow(entry, chosen) {
  const p = Math.exp(entry.logprob);
  return h('li', {class: chosen ? 'chosen' : undefined},
    h('span', {class: 'alt-text'}, visible(entry.text)),
    h('span', {class: 'alt-bar'}, h('i', {vars: {'--p': p}})),
    h('span', {class: 'alt-p'}, percent(p)));
}

function describe(token, canLook) {
  const list = [...token.alternatives];
  if (!list.some((a) => a.text === token.text)) list.push({text: token.text, logprob: token.logprob});
  list.sort((a, b) => b.logprob - a.logprob);
  return [
    h('p', {}, h('b', {class: 'alt-text'}, visible(token.text)), ` was given ${percent(Math.exp(token.logprob))}`,
      token.id === undefined ? '' : h('small', {}, ` · id ${token.id}`)),
    h('ul', {}, list.map((entry) => alternativeRow(entry, entry.text === token.text))),
    canLook && h('p', {class: 'popover-hint'}, 'Click: where did the model look when it wrote this?'),
  ];
}

function place(anchor) {
  const box = anchor.getBoundingClientRect();
  const own = popover.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left), document.documentElement.clientWidth - own.width - 8);
  const below = box.bottom + 6 + own.height < window.innerHeight;
  popover.style.left = `${left + window.scrollX}px`;
  popover.style.top = `${(below ? box.bottom + 6 : box.top - own.height - 6) + window.scrollY}px`;
}

function showFor(anchor, token, canLook) {
  popover ??= document.body.appendChild(h('div', {class: 'token-popover', role: 'tooltip', id: 'token-popover'}));
  fill(popover, describe(token, canLook));
  popover.hidden = false;
  anchor.setAttribute('aria-describedby', popover.id);
  place(anchor);
}

function hide(anchor) {
  anchor?.removeAttribute('aria-describedby');
  if (popover) popover.hidden = true;
}

document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && popover && !popover.hidden) hide(document.activeElement);
});

// Text and tokens of one answer. `mode` is 'tokens' or 'text'.
export class TokenView {
  #tokens = new WeakMap(); // element -> token
  #first = true;
  #ids = []; // of the tokens, undefined where the server did not say

  // onLook(index, token, ids): somebody asks where the model looked when it wrote this token; ids: of those before it in the
  // answer. Without it tokens only show what else they might have been.
  constructor(label, onLook = null) {
    this.onLook = onLook;
    this.text = '';
    this.numTokens = 0;
    this.#build(label);
  }

  #build(label) {
    this.plain = h('div', {class: 'plain-text'});
    this.list = h('div', {class: 'token-list', role: 'group', 'aria-label': label});
    this.node = h('div', {class: 'token-view', 'data-mode': 'text'}, this.plain, this.list);
    rovingFocus(this.list, '.token');
    const anchorOf = (event) => event.target.closest?.('.token');
    for (const type of ['pointerover', 'focusin']) {
      this.list.addEventListener(type, (event) => {
        const anchor = anchorOf(event);
        const token = this.#tokens.get(anchor);
        if (token?.logprob !== undefined) showFor(anchor, token, this.#canLook(token));
      });
    }
    for (const type of ['pointerout', 'focusout']) {
      this.list.addEventListener(type, (event) => hide(anchorOf(event)));
    }
    this.list.addEventListener('click', (event) => this.#look(anchorOf(event)));
    this.list.addEventListener('keydown', (event) => {
      if (event.key === 'Enter') this.#look(anchorOf(event));
    });
  }

  #canLook(token) {
    return this.onLook !== null && this.#ids.slice(0, token.index).every((id) => id !== undefined);
  }

  #look(anchor) {
    const token = this.#tokens.get(anchor);
    if (!token || !this.#canLook(token)) return;
    hide(anchor);
    this.onLook(token.index, token, this.#ids.slice(0, token.index));
  }

  setMode(mode) {
    this.node.dataset.mode = mode;
  }

  addText(text) {
    this.text += text;
    this.plain.append(text);
  }

  // token: {text, logprob?, alternatives: [{text, logprob}], id?}
  addToken(token) {
    this.numTokens += 1;
    this.#ids.push(token.id);
    // A control token is no part of the text: its name would look like something that the model wrote.
    const special = /^<[^<>]+>$/.test(token.text) && !this.text.includes(token.text);
    const known = token.logprob !== undefined && token.logprob !== null;
    const element = h('span', {class: `token${known ? '' : ' unknown'}${special ? ' special' : ''}`, tabindex: this.#first ? '0' : '-1',
      role: 'button', vars: known ? {'--p': Math.exp(token.logprob).toFixed(4)} : undefined},
    special ? '∎' : token.text === '\n' ? '↵\n' : token.text);
    if (special) element.title = `${token.text}: the model ended its answer here`;
    if (known) {
      element.setAttribute('aria-label', `${visible(token.text)}, ${percent(Math.exp(token.logprob))}`);
      this.#tokens.set(element, {...token, index: this.numTokens - 1});
    }
    this.#first = false;
    this.list.append(element);
  }
}

// The logprobs of one chunk as tokens, for both shapes of the API.
export function tokensOf(choice) {
  const {logprobs} = choice;
  if (!logprobs) return [];
  const ids = choice.token_ids?.length === (logprobs.content ?? logprobs.tokens).length ? choice.token_ids : [];
  if (logprobs.content) {
    return logprobs.content.map((entry, i) => ({
      text: entry.token, logprob: entry.logprob, id: ids[i],
      alternatives: (entry.top_logprobs ?? []).map((top) => ({text: top.token, logprob: top.logprob})),
    }));
  }
  return logprobs.tokens.map((text, i) => ({
    text, logprob: logprobs.token_logprobs[i] ?? undefined, id: ids[i],
    alternatives: Object.entries(logprobs.top_logprobs?.[i] ?? {}).map(([key, value]) => ({text: key, logprob: value})),
  }));
}

export const legend = () => h('div', {class: 'probability-legend', 'aria-hidden': 'true'},
  h('span', {}, 'unlikely'), h('i', {}), h('span', {}, 'certain'));
