// Sliders for the four numbers of a head: what would it believe if they were different?

import {h, uniqueId} from './dom.js';
import {signed} from './format.js';

const SLIDERS = [
  ['alpha', 'θα', 'scale: how fast belief falls with distance', -6, 4],
  ['beta', 'θβ', 'shape: > 1 local, 0 … 1 heavy tail, < 0 retrieval', -1.5, 2],
  ['theta_mu', 'θμ', 'location: negative moves the peak into the past', -6, 3],
  ['seq_scale', 's', 'SSMax: sharpness grows with the context', 0, 1.5],
];
const STEP = 0.01;

export class WhatIf {
  #inputs = new Map();
  #touched = new Set(); // the others keep the head's exact value, which lies between two steps
  #base = null;

  // onChange(parameters | null)
  constructor(host, onChange) {
    this.onChange = onChange;
    this.reset = h('button', {type: 'button', class: 'small', disabled: true, on: {click: () => this.#reset()}}, 'Reset');
    host.append(h('div', {class: 'card-head'}, h('h2', {}, 'What if'), this.reset),
      h('div', {class: 'sliders'}, SLIDERS.map((spec) => this.#slider(...spec))));
  }

  #slider(key, name, text, min, max) {
    const id = uniqueId('what-if');
    const output = h('output', {for: id});
    const input = h('input', {id, type: 'range', min, max, step: STEP, 'data-parameter': key, on: {input: () => {
      output.textContent = signed(Number(input.value), 2);
      this.#touched.add(key);
      this.#changed();
    }}});
    this.#inputs.set(key, {input, output, min, max});
    return h('div', {class: 'slider'}, h('label', {for: id}, h('b', {}, name), ' ', h('small', {}, text)), output, input);
  }

  // Starts from a head's own values; the ranges grow where those lie outside.
  setBase(head, hasSsmax) {
    this.#base = head;
    this.#touched.clear();
    for (const [key, {input, output, min, max}] of this.#inputs) {
      input.min = Math.min(min, Math.floor(head[key]));
      input.max = Math.max(max, Math.ceil(head[key]));
      input.value = head[key];
      output.textContent = signed(head[key], 2);
      if (key === 'seq_scale') input.disabled = !hasSsmax;
    }
    this.reset.disabled = true;
  }

  #changed() {
    this.reset.disabled = false;
    const changed = {...this.#base};
    for (const key of this.#touched) changed[key] = Number(this.#inputs.get(key).input.value);
    this.onChange(changed);
  }

  #reset() {
    this.setBase(this.#base, !this.#inputs.get('seq_scale').input.disabled);
    this.onChange(null);
    this.#inputs.get('alpha').input.focus();
  }
}
