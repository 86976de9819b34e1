// Markdown as elements: what models write of it (headings, lists, code, quotes, tables), never HTML.

import {copyFrom} from './clipboard.js';
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
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^>\s?(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function fenced(lines, at) {
  const [, mark] = FENCE.exec(lines[at]);
  const indent = lines[at].search(/\S/);
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(mark)) end += 1;
  const code = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent, Math.max(0, line.search(/\S|$/))))).join('\n');
  const copy = h('button', {type: 'button', class: 'quiet small', on: {click: () => copyFrom(copy, code)}}, 'Copy');
  return [h('div', {class: 'code-block'}, h('pre', {}, h('code', {}, code)), copy), end + 1];
}

// An item has words, then blocks that are indented below it; one empty line between two items does not end the list.
function list(lines, at) {
  const [, {length: indent}, first] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first);
  const items = [];
  let i = at;
  while (i < lines.length) {
    if (!lines[i].trim()) {
      const next = ITEM.exec(lines[i + 1] ?? '');
      if (!next || next[1].length < indent || (next[1].length < indent + 2 && /\d/.test(next[2]) !== ordered)) break;
      i += 1;
      continue;
    }
    const item = ITEM.exec(lines[i]);
    const depth = lines[i].search(/\S/);
    if (item && depth >= indent && depth < indent + 2 && /\d/.test(item[2]) === ordered) {
      items.push({words: [item[3]], blocks: []});
      i += 1;
    } else if (depth < indent + 2) {
      break;
    } else if (item || FENCE.test(lines[i])) {
      const [block, end] = item ? list(lines, i) : fenced(lines, i);
      items.at(-1).blocks.push(block);
      i = end;
    } else {
      items.at(-1).words.push(lines[i].trim());
      i += 1;
    }
  }
  const start = ordered && parseInt(first, 10) !== 1 ? parseInt(first, 10) : undefined;
  return [h(ordered ? 'ol' : 'ul', {start}, items.map(({words, blocks}) => h('li', {}, inline(words.join(' ')), blocks))), i];
}

const cells = (line) => line.trim().replace(/^\||\|$/g, '').split(/(?<!\\)\|/).map((cell) => inline(cell.trim().replaceAll('\\|', '|')));

const isTable = (lines, at) => lines[at].includes('|') && (lines[at + 1] ?? '').includes('|') && TABLE_RULE.test(lines[at + 1]);

function table(lines, at) {
  const [rows, end] = gather(lines, at + 2, (line) => line.includes('|'));
  return [h('div', {class: 'table-scroll'}, h('table', {}, h('thead', {}, h('tr', {}, cells(lines[at]).map((cell) => h('th', {scope: 'col'}, cell)))),
    h('tbody', {}, rows.map((row) => h('tr', {}, cells(row).map((cell) => h('td', {}, cell))))))), end];
}

// Consecutive lines for which `test` holds, and where they end.
function gather(lines, at, test) {
  let end = at;
  while (end < lines.length && test(lines[end], end)) end += 1;
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
    else if (isTable(lines, at)) [block, at] = table(lines, at);
    else if (QUOTE.test(line)) {
      let quoted;
      [quoted, at] = gather(lines, at, (each) => QUOTE.test(each));
      block = h('blockquote', {}, markdown(quoted.map((each) => QUOTE.exec(each)[1]).join('\n')));
    } else {
      let words;
      [words, at] = gather(lines, at, (each, i) => isPlain(each) && !isTable(lines, i));
      block = h('p', {}, words.flatMap((each, i) => (i ? [h('br', {}), ...inline(each)] : inline(each))));
    }
    if (block) blocks.push(block);
  }
  return blocks;
}
