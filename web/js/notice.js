// One place per view for what went wrong, with what can be done about it.

import {h, fill} from './dom.js';

function titleOf(error) {
  if (error.kind === 'offline') return 'The server is out of reach';
  if (error.kind === 'auth') return 'This server needs a key';
  if (error.kind === 'busy') return error.status === 429 ? 'The queue is full' : 'Not available right now';
  if (error.status >= 500) return 'The server failed';
  return 'The request was refused';
}

export class Notice {
  #timer = 0;

  constructor() {
    this.node = h('div', {class: 'notice', role: 'alert', hidden: true});
  }

  clear() {
    clearInterval(this.#timer);
    this.node.hidden = true;
    fill(this.node);
  }

  // Something that the person in front of the page has to do first.
  hint(title, text) {
    clearInterval(this.#timer);
    fill(this.node, h('div', {}, h('strong', {}, title), ' ', h('span', {}, text)));
    this.node.hidden = false;
  }

  // retry: what the button does; counts down first when the server said how long to wait.
  show(error, retry) {
    clearInterval(this.#timer);
    const button = retry && h('button', {type: 'button', class: 'small',
      on: {click: () => { this.clear(); retry(); }}}, error.kind === 'auth' ? 'Enter the key' : 'Try again');
    fill(this.node, h('div', {}, h('strong', {}, titleOf(error)), ' ', h('span', {}, error.message)), button);
    this.node.hidden = false;
    if (button && error.retryAfterS > 0) this.#countDown(button, error.retryAfterS);
  }

  #countDown(button, seconds) {
    let left = seconds;
    const tell = () => {
      button.disabled = left > 0;
      button.textContent = left > 0 ? `Try again in ${left} s` : 'Try again';
      if (left-- <= 0) clearInterval(this.#timer);
    };
    tell();
    this.#timer = setInterval(tell, 1000);
  }
}
