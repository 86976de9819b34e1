// The prompt's length in tokens, asked from the server a moment after the last key.

import {postJson} from './api.js';
import {debounce} from './dom.js';
import {count} from './format.js';

const DELAY_MS = 250;

// onCount(text); request() gives the body of /tokenize, or null for an empty prompt.
export function tokenCounter(request, onCount) {
  let latest = null;
  return debounce(DELAY_MS, async () => {
    latest?.abort();
    const body = request();
    if (body === null) {
      onCount('');
      return;
    }
    latest = new AbortController();
    const {signal} = latest;
    try {
      const answer = await postJson('/tokenize', body, {signal, quiet: true});
      onCount(`${count(answer.count)} of ${count(answer.max_model_len)} tokens`, answer.count > answer.max_model_len);
    } catch {
      if (!signal.aborted) onCount(''); // the next key or the run itself will say what is wrong
    }
  });
}
