// Asks for the API key when the server wants one.

import {apiKey, onKeyNeeded, setApiKey} from './api.js';

export function initKeyDialog() {
  const dialog = document.getElementById('key-dialog');
  const input = document.getElementById('key-input');
  const message = document.getElementById('key-message');
  const shown = document.getElementById('key-show');

  function open(text) {
    message.textContent = text;
    input.value = '';
    input.type = 'password';
    shown.checked = false;
    dialog.returnValue = '';
    dialog.showModal();
    input.focus();
    return new Promise((resolve) => {
      dialog.addEventListener('close', () => resolve(dialog.returnValue === 'save'), {once: true});
    });
  }

  dialog.querySelector('form').addEventListener('submit', (event) => {
    event.preventDefault();
    setApiKey(input.value.trim());
    dialog.close('save');
  });
  document.getElementById('key-cancel').addEventListener('click', () => dialog.close('cancel'));
  shown.addEventListener('change', () => {
    input.type = shown.checked ? 'text' : 'password';
  });

  onKeyNeeded((rejected) => open(rejected
    ? 'The server did not accept that key. Enter another one.'
    : 'This server asks for an API key. It is kept until this tab is closed, and sent to this server only.'));

  return {
    change: () => open(apiKey() ? 'Enter another key, or leave the field empty to forget the present one.'
      : 'Enter an API key. It is kept until this tab is closed, and sent to this server only.'),
  };
}
