// A chart as a file: SVG and PNG look as on the page, CSV has the numbers behind it.

import {h} from './dom.js';
import {download} from './store.js';

const COPIED = ['fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-dasharray', 'stroke-opacity', 'stroke-linejoin',
  'opacity', 'font-family', 'font-size', 'font-weight', 'font-style', 'text-anchor'];
const PNG_SCALE = 2;

// The page's style sheets do not travel with a file, so what they say is written into the elements.
export function standaloneSvg(source) {
  const copy = source.cloneNode(true);
  const originals = [source, ...source.querySelectorAll('*')];
  [copy, ...copy.querySelectorAll('*')].forEach((element, i) => {
    const style = getComputedStyle(originals[i]);
    for (const name of COPIED) {
      const value = style.getPropertyValue(name);
      if (value) element.setAttribute(name, value);
    }
    for (const name of ['class', 'tabindex', 'role', 'aria-label']) element.removeAttribute(name);
  });
  const box = source.viewBox.baseVal;
  copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
  const paper = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
  for (const [name, value] of Object.entries({x: box.x, y: box.y, width: box.width, height: box.height,
    fill: getComputedStyle(source.closest('.card') ?? document.body).backgroundColor})) paper.setAttribute(name, value);
  copy.prepend(paper);
  return new XMLSerializer().serializeToString(copy);
}

async function asPng(source) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standaloneSvg(source))}`;
  await image.decode();
  const {width, height} = source.viewBox.baseVal;
  const canvas = h('canvas', {width: width * PNG_SCALE, height: height * PNG_SCALE});
  canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, 'image/png'));
}

const cell = (value) => {
  const text = value === null || value === undefined ? '' : String(value);
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

export const asCsv = (rows) => rows.map((row) => row.map(cell).join(',')).join('\n') + '\n';

// Buttons that save a chart. `rows()`: the table behind it, names first; `chart` may be missing.
export function exportButtons(name, {chart, rows}) {
  const button = (text, title, run) => h('button', {type: 'button', class: 'quiet small', title, 'data-export': text.toLowerCase(),
    on: {click: run}}, text);
  return h('span', {class: 'chart-export', role: 'group', 'aria-label': `Save the ${name}`},
    chart && button('SVG', 'Save as a vector graphic', () => download(`${name}.svg`, 'image/svg+xml', standaloneSvg(chart.svg))),
    chart && button('PNG', 'Save as an image', async () => download(`${name}.png`, 'image/png', await asPng(chart.svg))),
    rows && button('CSV', 'Save the numbers', () => download(`${name}.csv`, 'text/csv', asCsv(rows()))));
}
