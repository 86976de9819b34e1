// Addresses that open a view as it is now: "#attention/2/3/p=The%20text".

import {copyFrom} from './clipboard.js';
import {h} from './dom.js';

const LONGEST_PROMPT = 4000; // characters in an address

export function linkTo({view, prompt}) {
  return `${location.origin}/#${view}${prompt ? `/p=${encodeURIComponent(prompt)}` : ''}`;
}

// {name, params, prompt} of an address.
export function readHash(hash) {
  const [name, ...rest] = hash.slice(1).split('/');
  const params = rest.filter((part) => !part.startsWith('p='));
  const text = rest.find((part) => part.startsWith('p='));
  try {
    return {name, params, prompt: text === undefined ? undefined : decodeURIComponent(text.slice(2))};
  } catch {
    return {name, params, prompt: undefined}; // half of an escape
  }
}

// place(): {view, prompt}
export function linkButton(place) {
  const button = h('button', {type: 'button', class: 'quiet', 'data-link': '', title: 'Copy the address of what is shown'}, 'Copy link');
  button.addEventListener('click', () => {
    const {view, prompt} = place();
    const tooLong = (prompt ?? '').length > LONGEST_PROMPT;
    copyFrom(button, linkTo({view, prompt: tooLong ? '' : prompt}), tooLong ? 'Copied, without the long prompt' : undefined);
  });
  return button;
}
