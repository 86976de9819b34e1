// System theme by default; one button goes through system, light and dark.

const ORDER = ['system', 'light', 'dark'];
const LABELS = {system: 'Theme: system', light: 'Theme: light', dark: 'Theme: dark'};

const root = document.documentElement;
const current = () => root.dataset.theme ?? 'system';

function store(theme) {
  try {
    if (theme === 'system') localStorage.removeItem('bam.theme');
    else localStorage.setItem('bam.theme', theme);
  } catch {
    // Not remembered, still applied.
  }
}

export function setTheme(theme) {
  if (theme === 'system') delete root.dataset.theme;
  else root.dataset.theme = theme;
  store(theme);
  const button = document.getElementById('theme');
  button.dataset.icon = theme;
  button.setAttribute('aria-label', LABELS[theme]);
  button.title = `${LABELS[theme]} (t)`;
}

export const nextTheme = () => setTheme(ORDER[(ORDER.indexOf(current()) + 1) % ORDER.length]);

export function initTheme() {
  document.getElementById('theme').addEventListener('click', nextTheme);
  setTheme(current());
}
