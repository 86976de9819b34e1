// The passkey task in the words of the BAM paper, as token ids: a prompt of exactly `length` tokens without its text ever
// being written out. The same rules as `bam passkey`.

export const WORDING = {
  task: 'There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you '
    + 'about the important information there.',
  filler: 'The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.',
  line: 'The pass key is {key}. Remember it. {key} is the pass key.',
  question: 'What is the pass key? The pass key is',
};

// Five digits, the first not zero.
export const randomKey = () => String(10000 + Math.floor(Math.random() * 90000));

const sameIds = (a, b) => a.length === b.length && a.every((id, i) => id === b[i]);

// encode: text -> Promise of token ids, no special ones. Some tokenizers put the space before a word themselves, others
// need it in the text.
async function pieceEncoder(encode) {
  const [whole, left, right, spaced] = await Promise.all(
    ['The grass is green. The sky is blue.', 'The grass is green.', 'The sky is blue.', ' The sky is blue.'].map(encode));
  const addsSpace = !sameIds(whole, [...left, ...right]) && sameIds(whole, [...left, ...spaced]);
  return {first: encode, next: (text) => encode(addsSpace ? ` ${text}` : text)};
}

export async function encodePieces(encode, key) {
  const pieces = await pieceEncoder(encode);
  const [task, filler, line, question] = await Promise.all([
    pieces.first(WORDING.task), pieces.next(WORDING.filler),
    pieces.next(WORDING.line.replaceAll('{key}', key)), pieces.next(WORDING.question)]);
  return {task, filler, line, question};
}

export const shortest = (pieces) => pieces.task.length + pieces.line.length + pieces.question.length;

// {ids, lineAt}: the line goes to the start of the unit of filler that is nearest to `depth` (0 … 1). What the filler has
// too much is cut from its beginning, so that every other unit is whole.
export function assemble(pieces, length, depth) {
  const {task, filler, line, question} = pieces;
  const room = length - shortest(pieces);
  if (room < 0) throw new Error(`${length} tokens are too few: the task itself takes ${shortest(pieces)}.`);
  const units = Math.ceil(room / filler.length);
  const cut = units * filler.length - room;
  const startOf = (unit) => (unit === 0 ? 0 : unit * filler.length - cut);
  const target = depth * room;
  let before = Math.min(units, Math.max(0, Math.round((target + cut) / filler.length)));
  // The first unit is shorter; 0 may be nearer than the rounding above thinks.
  if (before > 0 && target - startOf(before - 1) <= startOf(before) - target) before -= 1;

  const ids = new Int32Array(length);
  let at = 0;
  const put = (piece) => {
    ids.set(piece, at);
    at += piece.length;
  };
  put(task);
  let lineAt = 0;
  for (let unit = 0; unit <= units; ++unit) {
    if (unit === before) {
      lineAt = at;
      put(line);
    }
    if (unit < units) put(unit === 0 && cut > 0 ? filler.slice(cut) : filler);
  }
  put(question);
  return {ids, lineAt};
}

// [{name, range}]: where the number stands in the line, each time. Tokens of the number are those that nothing else has.
export function keySpans(pieces, keyIds, lineAt) {
  const others = new Set([...pieces.task, ...pieces.filler, ...pieces.question]);
  const own = new Set(keyIds.filter((id) => !others.has(id)));
  const spans = [];
  pieces.line.forEach((id, i) => {
    if (!own.has(id)) return;
    const last = spans.at(-1);
    if (last && last.range[1] === lineAt + i) last.range[1] += 1;
    else spans.push({name: spans.length === 0 ? 'First time' : 'Again', range: [lineAt + i, lineAt + i + 1]});
  });
  return spans.length ? spans : [{name: 'its line', range: [lineAt, lineAt + pieces.line.length]}];
}

// Right when the first digits of the answer are the key.
export function isHit(answer, key) {
  const start = answer.search(/\d/);
  return start >= 0 && answer.startsWith(key, start);
}
