// Elements without markup strings: nothing that a server or a model says can become HTML.

const SVG = 'http://www.w3.org/2000/svg';

function apply(node, props) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'on') {
      for (const [type, listener] of Object.entries(value)) node.addEventListener(type, listener);
    } else if (name === 'vars') {
      // The content security policy forbids style attributes, not the object model.
      for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
    } else if (name === 'value' || name === 'checked' || name === 'disabled' || name === 'hidden') {
      node[name] = value;
    } else {
      node.setAttribute(name, value === true ? '' : value);
    }
  }
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child);
  }
  return node;
}

// h('button', {class: 'primary', on: {click: run}}, 'Run')
export function h(tag, props, ...children) {
  const node = document.createElement(tag);
  apply(node, props);
  return append(node, children);
}

export function svg(tag, props, ...children) {
  const node = document.createElementNS(SVG, tag);
  apply(node, props);
  return append(node, children);
}

export function fill(node, ...children) {
  node.replaceChildren();
  return append(node, children);
}

let nextId = 0;
export const uniqueId = (prefix) => `${prefix}-${++nextId}`;

// A labelled control; `hint` explains it and is read out with it.
export function field(label, control, hint) {
  control.id ||= uniqueId('field');
  const parts = [h('label', {for: control.id, class: 'field-label'}, label), control];
  if (hint) {
    const id = `${control.id}-hint`;
    control.setAttribute('aria-describedby', id);
    parts.push(h('small', {id, class: 'field-hint'}, hint));
  }
  return h('div', {class: 'field'}, parts);
}

export function select(options, value, onChange, props) {
  const node = h('select', {...props, on: {change: () => onChange(node.value)}},
    options.map(([key, text, disabled]) => h('option', {value: key, disabled}, text)));
  node.value = value;
  return node;
}

// Radio buttons that look like one segmented control. Arrow keys work as in any radio group.
export function segmented(legend, options, value, onChange) {
  const name = uniqueId('segment');
  return h('fieldset', {class: 'segmented'}, h('legend', {class: 'visually-hidden'}, legend),
    options.map(([key, text]) => {
      const input = h('input', {type: 'radio', name, value: key, checked: key === value,
        on: {change: () => onChange(key)}});
      return h('label', {}, input, h('span', {}, text));
    }));
}

// Moves focus inside a group whose members share one tab stop. `columns` > 0 makes it a grid.
export function rovingFocus(container, selector, columns = 0) {
  container.addEventListener('keydown', (event) => {
    const items = [...container.querySelectorAll(selector)];
    const at = items.indexOf(event.target.closest?.(selector));
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const width = typeof columns === 'function' ? columns() : columns;
    const moves = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: width || 1, ArrowUp: -(width || 1)};
    let to = at + (moves[event.key] ?? 0);
    if (event.key === 'Home') to = 0;
    if (event.key === 'End') to = items.length - 1;
    if (to === at || to < 0 || to >= items.length) return;
    event.preventDefault();
    items[at].tabIndex = -1;
    items[to].tabIndex = 0;
    items[to].focus();
  });
}

export function debounce(delayMs, run) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...args), delayMs);
  };
}

// At most one call per animation frame, with the latest arguments.
export function perFrame(run) {
  let pending = null;
  return (...args) => {
    const first = pending === null;
    pending = args;
    if (!first) return;
    requestAnimationFrame(() => {
      const latest = pending;
      pending = null;
      run(...latest);
    });
  };
}
