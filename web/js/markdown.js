// Markdown as elements: what models write of it (headings, lists, code, quotes, tables are text), never HTML.

import {h} from './dom.js';

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^*\n]+)\*\*|__([^_\n]+)__|\*([^*\s][^*\n]*)\*|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/g;

function inline(text) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    const [all, , code, strong, strong2, emphasis, label, address] = match;
    parts.push(text.slice(from, match.index));
    if (code !== undefined) parts.push(h('code', {}, code));
    else if (strong ?? strong2) parts.push(h('strong', {}, strong ?? strong2));
    else if (emphasis) parts.push(h('em', {}, emphasis));
    else parts.push(h('a', {href: address, rel: 'noreferrer noopener', target: '_blank'}, label));
    from = match.index + all.length;
  }
  return [...parts, text.slice(from)];
}

const FENCE = /^\s*(```+|~~~+)\s*(\S*)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^\s*([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^>\s?(.*)$/;

function fenced(lines, at) {
  const [, mark] = FENCE.exec(lines[at]);
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(mark)) end += 1;
  return [h('pre', {}, h('code', {}, lines.slice(at + 1, end).join('\n'))), end + 1];
}

function list(lines, at) {
  const ordered = /^\s*\d/.test(lines[at]);
  const items = [];
  let i = at;
  for (; i < lines.length; i += 1) {
    const item = ITEM.exec(lines[i]);
    if (item && /^\d/.test(item[1]) === ordered) items.push([item[2]]);
    else if (!item && lines[i].startsWith('  ') && lines[i].trim()) items.at(-1).push(lines[i].trim());
    else break;
  }
  return [h(ordered ? 'ol' : 'ul', {}, items.map((words) => h('li', {}, inline(words.join(' '))))), i];
}

// Consecutive lines for which `test` holds, and where they end.
function gather(lines, at, test) {
  let end = at;
  while (end < lines.length && test(lines[end])) end += 1;
  return [lines.slice(at, end), end];
}

const isPlain = (line) => line.trim() !== '' && ![FENCE, HEADING, ITEM, QUOTE].some((start) => start.test(line));

// The blocks of a text; an unfinished code block goes to the end, as while it is being written.
export function markdown(text) {
  const lines = text.split('\n');
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    const heading = HEADING.exec(line);
    let block = null;
    if (line.trim() === '') at += 1;
    else if (FENCE.test(line)) [block, at] = fenced(lines, at);
    else if (heading) {
      block = h(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2]));
      at += 1;
    } else if (ITEM.test(line)) [block, at] = list(lines, at);
    else if (QUOTE.test(line)) {
      let quoted;
      [quoted, at] = gather(lines, at, (each) => QUOTE.test(each));
      block = h('blockquote', {}, markdown(quoted.map((each) => QUOTE.exec(each)[1]).join('\n')));
    } else {
      let words;
      [words, at] = gather(lines, at, isPlain);
      block = h('p', {}, words.flatMap((each, i) => (i ? [h('br', {}), ...inline(each)] : inline(each))));
    }
    if (block) blocks.push(block);
  }
  return blocks;
}
