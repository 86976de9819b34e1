// The only module that talks to the server.

import {readEvents} from './sse.js';

const KEY_SLOT = 'bam.key';

export class ApiError extends Error {
  // kind: offline (no answer), auth, busy (429, 503 with a wait), http
  constructor(kind, message, {status = 0, code = null, retryAfterS = 0} = {}) {
    super(message);
    this.kind = kind;
    this.status = status;
    this.code = code;
    this.retryAfterS = retryAfterS;
  }
}

// 'reachable' and 'unreachable', whenever a call shows which it is.
export const connection = new EventTarget();

function report(reachable) {
  connection.dispatchEvent(new Event(reachable ? 'reachable' : 'unreachable'));
}

// Session storage may be forbidden; then the key lives as long as the page.
let memoryKey = '';
export function apiKey() {
  try {
    return sessionStorage.getItem(KEY_SLOT) ?? memoryKey;
  } catch {
    return memoryKey;
  }
}

export function setApiKey(key) {
  memoryKey = key;
  refused = false;
  try {
    if (key) sessionStorage.setItem(KEY_SLOT, key);
    else sessionStorage.removeItem(KEY_SLOT);
  } catch {
    // Kept in memory.
  }
}

// Set by key_dialog.js: asks for a key and resolves to true when one was given. All calls that meet a 401 at the same
// time wait for one question.
let ask = async () => false;
let question = null;
export function onKeyNeeded(asker) {
  ask = asker;
}

// The last call that needs a key was refused for want of one. /health needs none.
let refused = false;
export const keyRefused = () => refused;

function askForKey(rejectedKey) {
  // Another call may have been answered while this one was under way.
  if (apiKey() !== rejectedKey) return Promise.resolve(true);
  question ??= ask(rejectedKey !== '').finally(() => {
    question = null;
  });
  return question;
}

async function failure(response) {
  let message = `The server answered ${response.status}.`;
  let code = null;
  try {
    const {error} = await response.json();
    message = error?.message ?? message;
    code = error?.code ?? null;
  } catch {
    // Not JSON: a proxy's page, perhaps.
  }
  const retryAfterS = Number(response.headers.get('retry-after')) || 0;
  const busy = response.status === 429 || (response.status === 503 && retryAfterS > 0);
  const kind = response.status === 401 ? 'auth' : busy ? 'busy' : 'http';
  return new ApiError(kind, message, {status: response.status, code, retryAfterS});
}

async function send(path, {body, signal, accept = 'application/json', quiet = false} = {}) {
  for (;;) {
    const key = apiKey();
    const headers = {accept};
    if (key) headers.authorization = `Bearer ${key}`;
    if (body !== undefined) headers['content-type'] = 'application/json';
    let response;
    try {
      // An address with credentials in it (https://user:key@host/) is no base for fetch; the origin is.
      response = await fetch(location.origin + path, {
        method: body === undefined ? 'GET' : 'POST',
        headers,
        body: body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body),
        signal,
        cache: 'no-store',
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      report(false);
      throw new ApiError('offline', 'The server does not answer.');
    }
    report(true);
    if (response.status === 401 && !quiet && (await askForKey(key))) continue;
    if (path !== '/health') refused = response.status === 401;
    return response;
  }
}

export async function getJson(path, options) {
  const response = await send(path, options);
  if (!response.ok) throw await failure(response);
  return response.json();
}

export const postJson = (path, body, options) => getJson(path, {...options, body});

// /health says 503 with the same details while the model loads.
export async function getHealth(options) {
  const response = await send('/health', options);
  if (!response.ok && response.status !== 503) throw await failure(response);
  return response.json();
}

export async function getText(path, options) {
  const response = await send(path, {...options, accept: 'text/plain'});
  if (!response.ok) throw await failure(response);
  return response.text();
}

// Chunks of a streamed completion. Ends after [DONE]; an error event and a stream that breaks off throw.
export async function* stream(path, body, signal) {
  const response = await send(path, {body, signal, accept: 'text/event-stream'});
  if (!response.ok) throw await failure(response);
  try {
    for await (const data of readEvents(response.body)) {
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError('http', chunk.error.message, {code: chunk.error.code});
      yield chunk;
    }
  } catch (error) {
    if (error instanceof ApiError || signal?.aborted) throw error;
    report(false);
  }
  if (!signal?.aborted) throw new ApiError('offline', 'The connection broke off in the middle of the answer.');
}

// Requests that this page has under way, so that the engine view can tell them from others.
export const ownRequests = new Set();
