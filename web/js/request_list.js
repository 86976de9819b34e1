// Live requests as cards with a progress bar and a cancel button. Cards are kept between readings, so that focus and
// screen readers stay where they are.

import {fill, h} from './dom.js';
import {count, percent, seconds} from './format.js';

const STATES = {queued: 'waiting', prefill: 'reading', decode: 'writing', preempted: 'put back', paused: 'paused'};

function describe(request) {
  if (request.state === 'decode' || (request.state === 'paused' && request.generated_tokens > 0)) {
    return `${count(request.generated_tokens)} tokens written after ${count(request.prompt_tokens)} read`;
  }
  return `${count(request.processed_tokens)} of ${count(request.prompt_tokens)} prompt tokens`;
}

export class RequestList {
  #cards = new Map(); // id -> parts

  constructor(onCancel) {
    this.onCancel = onCancel;
    this.empty = h('p', {class: 'empty'}, 'No requests right now. Those of this page and of every other client appear here.');
    this.list = h('ul', {class: 'requests'});
    this.node = h('div', {}, this.empty, this.list);
  }

  set(requests, own) {
    const present = new Set(requests.map((r) => r.id));
    for (const [id, card] of this.#cards) {
      if (present.has(id)) continue;
      const hadFocus = card.node.contains(document.activeElement);
      card.node.remove();
      this.#cards.delete(id);
      if (hadFocus) (this.list.querySelector('button') ?? document.getElementById('tab-engine')).focus();
    }
    for (const request of requests) {
      let card = this.#cards.get(request.id);
      if (!card) {
        this.#cards.set(request.id, card = this.#card(request.id));
        this.list.append(card.node);
      }
      this.#update(card, request, own.has(request.id));
    }
    this.empty.hidden = requests.length > 0;
  }

  #card(id) {
    const card = {state: h('span', {class: 'badge'}), text: h('span', {class: 'request-text'}),
      bar: h('progress', {max: 1, 'aria-label': `Progress of ${id}`}), mine: h('span', {class: 'mine'}),
      times: h('span', {class: 'request-times'})};
    const cancel = h('button', {type: 'button', class: 'small danger', 'aria-label': `Cancel ${id}`, on: {click: () => {
      cancel.disabled = true;
      this.onCancel(id);
    }}}, 'Cancel');
    card.node = h('li', {class: 'request', 'data-id': id},
      h('div', {class: 'request-top'}, card.state, h('code', {title: id}, id), card.mine, cancel),
      card.bar, h('div', {class: 'request-bottom'}, card.text, card.times));
    return card;
  }

  #update(card, request, mine) {
    card.state.textContent = STATES[request.state] ?? request.state;
    card.state.className = `badge state-${request.state}`;
    card.mine.textContent = mine ? 'this page' : '';
    card.text.textContent = describe(request)
      + (request.cached_tokens > 0 ? `, ${percent(request.cached_tokens / request.prompt_tokens)} cached` : '')
      + (request.n > 1 ? `, ${request.n} choices` : '') + (request.priority ? `, priority ${request.priority}` : '');
    const target = request.state === 'decode' ? 'end' : 'first token';
    fill(card.times, `${seconds(request.age_ms / 1000)} old`,
      request.eta_ms > 0 && `, ${target} in ${seconds(request.eta_ms / 1000)}`);
    if (request.state === 'decode') {
      // How far decoding has come is known by the time it still needs.
      const left = request.eta_ms;
      card.bar.value = left > 0 ? request.age_ms / (request.age_ms + left) : 1;
    } else {
      card.bar.value = request.prompt_tokens > 0 ? request.processed_tokens / request.prompt_tokens : 0;
    }
  }
}
