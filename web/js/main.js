// Tabs, the header's status and shortcuts; each view is a module that is built when it is first opened.

import {connection, getHealth, getJson, keyRefused} from './api.js';
import {AttentionView} from './attention.js';
import {EngineView} from './engine.js';
import {count, short} from './format.js';
import {initKeyDialog} from './key_dialog.js';
import {readHash} from './links.js';
import {PlaygroundView} from './playground.js';
import {PriorView} from './prior.js';
import {initTheme, nextTheme} from './theme.js';

const VIEWS = {playground: PlaygroundView, prior: PriorView, attention: AttentionView, engine: EngineView};
const NAMES = Object.keys(VIEWS);
const STATUS_INTERVAL_MS = 5000;

const byId = (id) => document.getElementById(id);
const mounted = new Map();
let active = null;

// ---- what the server serves, asked once and again after it was away

let info = null;
const app = {
  head: null, // {layer, head}: the one that was chosen last, in whichever view
  look: null, // {ids, title, spans}: what the attention view shall show next
  // /props; fails with an ApiError that the view shows.
  info(options) {
    info ??= getJson('/props', options).catch((error) => {
      info = null;
      throw error;
    });
    return info;
  },
  open(hash) {
    location.hash = hash;
  },
  // Opens the attention view on a row: {ids, title, spans}; the last of the ids is the token that looks.
  lookAt(look) {
    app.look = look;
    if (active === 'attention') route();
    else app.open('attention');
  },
};

function describeModel(props) {
  const {model} = props;
  const {meta} = model;
  const size = meta.num_parameters >= 1e6
    ? `${(meta.num_parameters / 1e6).toFixed(meta.num_parameters < 1e7 ? 1 : 0)}M parameters`
    : `${count(meta.num_parameters)} parameters`;
  return {
    line: `${model.id} · ${size} · ${meta.weight_dtype} · trained at ${short(meta.training_context)}`,
    more: `${model.id}, bam ${props.version}, ${meta.device}, ${count(props.engine.max_model_len)} tokens at most`,
  };
}

// ---- status in the header

const STATES = {ok: 'ready', loading: 'loading the model', draining: 'shutting down', stalled: 'stalled'};

function setStatus(state, text) {
  const node = byId('status');
  node.dataset.state = state;
  node.lastElementChild.textContent = text;
}

// Only the first reading may ask for a key; somebody who declined shall not be asked every few seconds.
async function refreshStatus(options = {quiet: true}) {
  const before = byId('status').dataset.state;
  try {
    const health = await getHealth(options);
    const show = () => setStatus(health.status, STATES[health.status] ?? health.status);
    if (health.status === 'loading') {
      show();
      byId('model-line').textContent = 'the model is being loaded …';
    } else {
      const {line, more} = describeModel(await app.info(options));
      if (keyRefused()) {
        setStatus('auth', 'needs a key');
        return;
      }
      show();
      byId('model-line').textContent = line;
      byId('model-line').title = more;
      if (before !== 'ok' && before !== 'connecting') mounted.get(active)?.show?.();
    }
  } catch (error) {
    if (error.kind === 'auth') setStatus('auth', 'needs a key');
    else if (error.kind !== 'offline') setStatus('stalled', 'not ready');
  }
}

function initStatus() {
  let reachable = true;
  connection.addEventListener('unreachable', () => {
    setStatus('offline', 'out of reach');
    byId('offline').hidden = false;
    byId('offline').textContent = 'The server does not answer. This page asks again every few seconds.';
    info = null;
    reachable = false;
  });
  connection.addEventListener('reachable', () => {
    byId('offline').hidden = true;
    if (!reachable) {
      reachable = true;
      refreshStatus();
    }
  });
  setInterval(() => {
    if (!document.hidden && !document.querySelector('dialog[open]')) refreshStatus();
  }, STATUS_INTERVAL_MS);
  refreshStatus({});
}

// ---- tabs: the address says which view is open, "#prior/2/3" that it shows layer 2, head 3; see links.js

function route() {
  const {name, params, prompt} = readHash(location.hash);
  openView(NAMES.includes(name) ? name : 'playground', params, prompt);
}

function openView(name, params, prompt) {
  for (const other of NAMES) {
    const tab = byId(`tab-${other}`);
    tab.setAttribute('aria-selected', String(other === name));
    tab.tabIndex = other === name ? 0 : -1;
    byId(`view-${other}`).hidden = other !== name;
  }
  if (active !== name) {
    mounted.get(active)?.hide?.();
    active = name;
    document.title = `bam · ${byId(`tab-${name}`).textContent}`;
  }
  if (!mounted.has(name)) mounted.set(name, new VIEWS[name](byId(`view-${name}`), app));
  mounted.get(name).show?.(params, prompt);
}

function initTabs() {
  const list = document.querySelector('[role=tablist]');
  list.addEventListener('click', (event) => {
    const tab = event.target.closest('[role=tab]');
    if (tab) app.open(tab.id.slice('tab-'.length));
  });
  list.addEventListener('keydown', (event) => {
    const at = NAMES.indexOf(active);
    const to = {ArrowRight: (at + 1) % NAMES.length, ArrowLeft: (at + NAMES.length - 1) % NAMES.length,
      Home: 0, End: NAMES.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    app.open(NAMES[to]);
    byId(`tab-${NAMES[to]}`).focus();
  });
  document.querySelector('.skip-link').addEventListener('click', (event) => {
    event.preventDefault(); // the address is the view's
    byId('views').focus();
  });
  window.addEventListener('hashchange', route);
  document.addEventListener('visibilitychange', () => {
    if (document.hidden) mounted.get(active)?.hide?.();
    else mounted.get(active)?.show?.();
  });
  route();
}

// ---- shortcuts: single keys count only where nobody is typing

const isTyping = (target) => target.closest?.('input:not([type=radio]):not([type=checkbox]):not([type=range]), textarea, select, [contenteditable]');

function initShortcuts(keyDialog) {
  const help = byId('help-dialog');
  const showHelp = () => help.showModal();
  byId('help-button').addEventListener('click', showHelp);
  byId('help-close').addEventListener('click', () => help.close());
  const changeKey = async () => {
    if (await keyDialog.change()) refreshStatus({});
  };
  byId('key-button').addEventListener('click', changeKey);
  const actions = {'?': showHelp, t: nextTheme, k: changeKey};
  NAMES.forEach((name, i) => {
    actions[i + 1] = () => app.open(name);
  });
  document.addEventListener('keydown', (event) => {
    if (event.defaultPrevented || event.altKey || document.querySelector('dialog[open]')) return;
    if (mounted.get(active)?.onKey?.(event)) {
      event.preventDefault();
      return;
    }
    if (event.ctrlKey || event.metaKey || isTyping(event.target)) return;
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

initTheme();
const keyDialog = initKeyDialog();
initShortcuts(keyDialog);
initTabs();
initStatus();
