// Copying for a person: the button says what came of it and then its name again.

import {h} from './dom.js';

const SHOWN_MS = 1500;

// Browsers give the clipboard to pages of HTTPS and of this machine only; a selected text can be copied anywhere.
async function write(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = h('textarea', {class: 'visually-hidden', 'aria-hidden': 'true', tabindex: '-1', value: text});
  const focused = document.activeElement;
  document.body.append(field);
  field.select();
  const copied = document.execCommand('copy');
  field.remove();
  focused?.focus();
  if (!copied) throw new Error('no access to the clipboard');
}

// `done`: what the button says after it worked.
export async function copyFrom(button, text, done = 'Copied') {
  const name = button.dataset.name ??= button.textContent;
  try {
    await write(text);
    button.textContent = done;
  } catch {
    button.textContent = 'No access to the clipboard';
  }
  setTimeout(() => {
    button.textContent = name;
  }, SHOWN_MS);
}
