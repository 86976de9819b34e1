// Every field of a generation request that a person may want to set, as a form. Empty means: not sent, so the server's
// default holds.

import {h, field} from './dom.js';
import {load, save} from './store.js';

export class FieldError extends Error {
  constructor(control, message) {
    super(message);
    this.control = control;
  }
}

const COMPLETION = 'completion';
const CHAT = 'chat';

// [group, [[key, label, kind, options]]]
const GROUPS = [
  ['Sampling', [
    ['max_tokens', 'Max tokens', 'integer', {min: 0, value: '128'}],
    ['temperature', 'Temperature', 'number', {min: 0, max: 100, step: 0.05}],
    ['top_p', 'Top p', 'number', {min: 0, max: 1, step: 0.01}],
    ['top_k', 'Top k', 'integer', {min: -1, hint: '0 or −1: off'}],
    ['min_p', 'Min p', 'number', {min: 0, max: 1, step: 0.01}],
    ['seed', 'Seed', 'integer', {hint: 'same seed, same text'}],
    ['n', 'Choices', 'integer', {min: 1, max: 16, placeholder: '1'}],
    ['alternatives', 'Alternatives', 'integer', {min: 0, max: 20, value: '5', hint: 'shown per token'}],
  ]],
  ['Penalties', [
    ['repetition_penalty', 'Repetition', 'number', {min: 0.01, max: 100, step: 0.05}],
    ['presence_penalty', 'Presence', 'number', {min: -2, max: 2, step: 0.1, placeholder: '0'}],
    ['frequency_penalty', 'Frequency', 'number', {min: -2, max: 2, step: 0.1, placeholder: '0'}],
    ['logit_bias', 'Logit bias', 'bias', {wide: true, placeholder: '42: −5, 17: 2.5', hint: 'token id: −100 … 100'}],
  ]],
  ['Stopping', [
    ['stop', 'Stop strings', 'lines', {wide: true, hint: 'one per line; \\n is a line end'}],
    ['stop_token_ids', 'Stop token ids', 'ids', {wide: true, placeholder: '2, 13'}],
    ['min_tokens', 'Min tokens', 'integer', {min: 0, placeholder: '0'}],
    ['timeout', 'Timeout, s', 'number', {min: 0.1, step: 1, placeholder: 'none'}],
    ['include_stop_str_in_output', 'Keep the stop string', 'flag', {}],
    ['ignore_eos', 'Ignore end of text', 'flag', {}],
  ]],
  ['Format', [
    ['response_format', 'Response format', 'choice', {options: [['', 'free text'], ['json_object', 'a JSON object'],
      ['json_schema', 'JSON by schema'], ['regex', 'a regular expression'], ['choice', 'one of']], wide: true}],
    ['constraint', 'Schema, expression or list', 'constraint', {wide: true}],
  ]],
  ['Request', [
    ['priority', 'Priority', 'integer', {placeholder: '0', hint: 'lower is earlier'}],
    ['truncate_prompt_tokens', 'Truncate to', 'integer', {min: -1, placeholder: 'off', hint: 'keeps the last tokens'}],
    ['cache_salt', 'Cache salt', 'text', {wide: true, hint: 'shares the prefix cache within one salt only'}],
    ['add_special_tokens', 'Special tokens', 'choice', {options: [['', 'as the model says'], ['true', 'add'],
      ['false', 'do not add']], wide: true}],
    ['echo', 'Echo the prompt', 'flag', {only: COMPLETION}],
  ]],
];

function makeControl(key, kind, options) {
  const shared = {name: key, autocomplete: 'off', spellcheck: 'false', placeholder: options.placeholder ?? ''};
  if (kind === 'flag') return h('input', {type: 'checkbox', name: key});
  if (kind === 'choice') {
    return h('select', {name: key}, options.options.map(([value, text]) => h('option', {value}, text)));
  }
  if (kind === 'lines' || kind === 'constraint') return h('textarea', {...shared, rows: kind === 'lines' ? 2 : 3});
  const control = h('input', {...shared, type: 'text', value: options.value ?? '',
    inputmode: kind === 'integer' || kind === 'number' ? 'decimal' : undefined});
  if (kind === 'number' || kind === 'integer') makeSteppable(control, kind, options);
  return control;
}

// Arrow keys change a number, as in a number input, but an empty field stays possible and typing is never swallowed.
function makeSteppable(control, kind, options) {
  control.addEventListener('keydown', (event) => {
    const direction = {ArrowUp: 1, ArrowDown: -1}[event.key];
    if (!direction) return;
    const from = Number(control.value || control.placeholder);
    if (Number.isNaN(from)) return;
    event.preventDefault();
    const step = kind === 'integer' ? 1 : options.step;
    const to = Math.min(options.max ?? Infinity, Math.max(options.min ?? -Infinity, from + direction * step));
    control.value = String(Number(to.toFixed(4)));
    control.dispatchEvent(new Event('input', {bubbles: true}));
  });
}

const plainMinus = (text) => text.replaceAll('−', '-');

function parseNumber(control, label, kind, {min, max}) {
  const text = plainMinus(control.value.trim());
  if (text === '') return undefined;
  const value = Number(text);
  const bad = Number.isNaN(value) || (kind === 'integer' && !Number.isSafeInteger(value));
  if (bad) throw new FieldError(control, `${label} must be ${kind === 'integer' ? 'a whole number' : 'a number'}.`);
  if (min !== undefined && value < min) throw new FieldError(control, `${label} must be at least ${min}.`);
  if (max !== undefined && value > max) throw new FieldError(control, `${label} must be at most ${max}.`);
  return value;
}

function parseIds(control, label) {
  const parts = control.value.split(/[\s,]+/).filter(Boolean);
  if (parts.some((part) => !/^\d+$/.test(part))) throw new FieldError(control, `${label} must be token ids.`);
  return parts.length ? parts.map(Number) : undefined;
}

function parseBias(control, label) {
  const entries = plainMinus(control.value).split(/[,\n]/).map((part) => part.trim()).filter(Boolean);
  const pairs = entries.map((entry) => {
    const match = /^"?(\d+)"?\s*[:=]\s*(-?\d+(?:\.\d+)?)$/.exec(entry);
    if (!match) throw new FieldError(control, `${label}: “${entry}” is not “token id: number”.`);
    return [match[1], Number(match[2])];
  });
  return pairs.length ? Object.fromEntries(pairs) : undefined;
}

function parseLines(control) {
  const lines = control.value.split('\n').filter((line) => line !== '')
    .map((line) => line.replace(/\\([nt\\])/g, (_, c) => ({n: '\n', t: '\t', '\\': '\\'})[c]));
  return lines.length ? lines : undefined;
}

export class SamplingForm {
  #controls = new Map(); // key -> {control, label, kind, options, box}

  constructor() {
    const phone = matchMedia('(max-width: 620px)').matches; // there, the answer matters more than the fields
    this.node = h('form', {class: 'sampling', 'aria-label': 'Sampling fields'},
      GROUPS.map(([title, fields], at) => h('details', {open: at === 0 && !phone},
        h('summary', {}, title, h('span', {class: 'set-count'})),
        h('div', {class: 'field-grid'}, fields.map((spec) => this.#add(...spec))),
        at === 0 && h('p', {class: 'card-note sampling-note'}, 'What is set is sent; for an empty field the model’s own value holds, in grey.'))));
    this.node.addEventListener('submit', (event) => event.preventDefault());
    this.#restore();
    this.node.addEventListener('input', () => {
      this.#changed();
      this.#keep();
    });
    this.#changed();
  }

  #add(key, label, kind, options) {
    const control = makeControl(key, kind, options);
    const box = kind === 'flag'
      ? h('label', {class: 'flag'}, control, h('span', {}, label))
      : field(label, control, options.hint);
    if (options.wide || kind === 'flag') box.classList.add('wide');
    this.#controls.set(key, {control, label, kind, options, box});
    return box;
  }

  // Fields survive a reload; only what differs from a fresh page is kept.
  #keep() {
    const kept = {};
    for (const [key, {control, kind, options}] of this.#controls) {
      const value = kind === 'flag' ? control.checked : control.value;
      if (value !== (kind === 'flag' ? false : options.value ?? '')) kept[key] = value;
    }
    save('sampling', kept);
  }

  #restore() {
    for (const [key, value] of Object.entries(load('sampling', {}))) {
      const {control, kind} = this.#controls.get(key) ?? {};
      if (!control) continue;
      if (kind === 'flag') control.checked = value === true;
      else control.value = String(value);
    }
  }

  #changed() {
    for (const details of this.node.querySelectorAll('details')) {
      const set = [...details.querySelectorAll('input, select, textarea')]
        .filter((control) => (control.type === 'checkbox' ? control.checked : control.value !== '')).length;
      const badge = details.querySelector('.set-count');
      badge.textContent = set ? `${set} set` : '';
      badge.title = `${set} of these fields ${set === 1 ? 'has a value and is' : 'have values and are'} sent; the server's defaults hold for the others`;
    }
    const format = this.#controls.get('response_format').control.value;
    const constraint = this.#controls.get('constraint');
    constraint.box.hidden = format === '' || format === 'json_object';
    constraint.control.placeholder = {json_schema: '{"type": "object", …}', regex: '[A-Z][a-z]+',
      choice: 'one per line'}[format] ?? '';
  }

  // What the server does when a field is left empty.
  setDefaults(settings) {
    for (const key of ['temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty']) {
      if (settings[key] !== undefined) {
        this.#controls.get(key).control.placeholder = String(Number(settings[key].toFixed(4)));
      }
    }
  }

  setMode(mode) {
    for (const {box, options} of this.#controls.values()) {
      if (options.only) box.hidden = options.only !== mode;
    }
  }

  set(key, value) {
    const {control} = this.#controls.get(key);
    control.value = value;
    this.#changed();
  }

  // The request's fields. Throws FieldError.
  read(mode) {
    const out = {};
    for (const [key, {control, label, kind, options}] of this.#controls) {
      if (options.only && options.only !== mode) continue;
      let value;
      if (kind === 'integer' || kind === 'number') value = parseNumber(control, label, kind, options);
      else if (kind === 'flag') value = control.checked || undefined;
      else if (kind === 'ids') value = parseIds(control, label);
      else if (kind === 'bias') value = parseBias(control, label);
      else if (kind === 'lines') value = parseLines(control);
      else if (kind === 'text') value = control.value || undefined;
      if (value !== undefined) out[key] = value;
    }
    this.#readChoices(out);
    this.#readAlternatives(out, mode);
    return out;
  }

  #readChoices(out) {
    const special = this.#controls.get('add_special_tokens').control.value;
    if (special) out.add_special_tokens = special === 'true';
    const format = this.#controls.get('response_format').control.value;
    const {control} = this.#controls.get('constraint');
    const text = control.value.trim();
    if (format && format !== 'json_object' && !text) throw new FieldError(control, 'The response format needs its text.');
    if (format === 'json_object') out.response_format = {type: 'json_object'};
    if (format === 'regex') out.regex = text;
    if (format === 'choice') out.choice = text.split('\n').filter(Boolean);
    if (format === 'json_schema') {
      try {
        out.response_format = {type: 'json_schema', json_schema: {name: 'page', schema: JSON.parse(text)}};
      } catch {
        throw new FieldError(control, 'The schema is not valid JSON.');
      }
    }
  }

  #readAlternatives(out, mode) {
    const wanted = out.alternatives;
    delete out.alternatives;
    if (wanted === undefined) return;
    if (mode === CHAT) Object.assign(out, {logprobs: true, top_logprobs: wanted});
    else out.logprobs = wanted;
  }
}
