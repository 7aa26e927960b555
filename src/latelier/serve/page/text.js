// What a stored text looks like without the marks of its format. Offsets are code points of the stored text, so the marks
// of words stay where they are.

import { element, isCode, marked } from "./render.js";

const PLAIN = /\.(txt|text|log|org|adoc|asciidoc|tex|textile)$/i;
const TABLE = /\.(csv|tsv)$/i;

// Files that are parsed are stored as Markdown; a text that comes from no file is shown as it is.
export function formOf(path) {
  if (!path) return "plain";
  if (isCode(path)) return "code";
  if (TABLE.test(path)) return "table";
  return PLAIN.test(path) || !/\.\w+$/.test(path) ? "plain" : "markdown";
}

const HEADING = /^(\s{0,3}#{1,6}\s+)(.*?)\s*#*\s*$/;
const ITEM = /^(\s*(?:[-*+]|\d{1,9}[.)])\s+(?:\[[ xX]\]\s+)?)/;
const QUOTE = /^\s{0,3}>\s?/;
const FENCE = /^\s*(?:```|~~~)/;
const RULE = /^\s{0,3}(?:[-*_=]\s*){3,}$/;
const DIVIDER = /^[\s|:-]*-[\s|:-]*$/; // below the head of a table
// Links and pictures keep their words, marks of emphasis and code vanish; what is between the marks of code stays as it is.
const INLINE =
  /(?<!`)(`{1,3})(?!`)([^`]{1,2000})\1(?!`)|!?\[([^\][]{0,500})\]\([^()\s]{0,2000}(?:\s"[^"]{0,500}")?\)|<(https?:[^<>\s]{1,2000})>|\*\*|__|~~|`+|(?<![\w*])\*(?=[^\s*][^*]{0,300}\*(?!\w))|\*(?![\w*])(?<=(?<![\w*])\*[^\s*][^*]{0,300}\*)/g;

const MARKS = /^[*_`]+|[*_`]+$/g; // around the words of a link

const points = (text) => Array.from(text).length;

function* linesOf(characters, from, to) {
  for (let start = from; start < to; ) {
    const next = characters.indexOf("\n", start);
    const end = next < 0 || next > to ? to : next;
    yield { start, end, text: characters.slice(start, end).join("") };
    start = end + 1;
  }
}

// The ranges of a line that are shown; `skip` is the number of its first characters that say what the line is.
function visible({ start, text }, skip = 0, last = text.length) {
  const ranges = [];
  let at = skip;
  let counted = 0; // code units, of which `offset` is the place in code points
  let offset = start;
  const placeOf = (index) => {
    offset += points(text.slice(counted, index));
    counted = index;
    return offset;
  };
  const add = (from, to) => {
    if (to > from) ranges.push({ start: placeOf(from), end: placeOf(to) });
  };
  for (const found of text.matchAll(INLINE)) {
    if (found.index < at || found.index >= last) continue;
    add(at, found.index);
    const words = found[2] ?? (found[3] ?? found[4])?.replaceAll(MARKS, "");
    const begin = found.index + (words ? found[0].indexOf(words) : 0);
    if (words) add(begin, begin + words.length);
    at = found.index + found[0].length;
  }
  add(at, last);
  return ranges;
}

// The cells of a row of a table with `separator`, each as ranges; quotes around a cell are left out.
function cellsOf(line, separator) {
  const { start, text } = line;
  const cells = [];
  let from = 0;
  let quoted = false;
  for (let i = 0; i <= text.length; i += 1) {
    if (text[i] === '"' && separator !== "|") quoted = !quoted;
    if (i < text.length && (quoted || text[i] !== separator)) continue;
    const cell = text.slice(from, i);
    const isQuoted = separator !== "|" && /^\s*".*"\s*$/.test(cell);
    const begin = from + cell.length - cell.trimStart().length + Number(isQuoted);
    const end = Math.max(begin, from + cell.trimEnd().length - Number(isQuoted));
    const offset = start + points(text.slice(0, begin));
    cells.push(
      separator === "|"
        ? visible(line, begin, end)
        : [{ start: offset, end: offset + points(text.slice(begin, end)) }],
    );
    from = i + 1;
  }
  return separator === "|" ? cells.slice(1, -1) : cells;
}

// The blocks of a text between two offsets: { kind, parts }, where parts are ranges; of a row, also its cells.
export function blocksOf(characters, form, from = 0, to = characters.length) {
  const blocks = [];
  let inFence = false;
  let separator = ",";
  for (const line of linesOf(characters, from, to)) {
    const { text } = line;
    const before = blocks.at(-1);
    const add = (kind, parts, more = {}) => blocks.push({ kind, parts, ...more });
    const addRow = (cells) => add("row", cells.flatMap((cell, i) => (i ? [{ gap: " · " }, ...cell] : cell)), { cells });
    const join = (kind, parts) => (before?.kind === kind ? before.parts.push(...parts) : add(kind, parts));
    if (form === "table") {
      if (!blocks.length) separator = [",", "\t", ";"].reduce((a, b) => (text.split(b).length > text.split(a).length ? b : a));
      if (text.trim()) addRow(cellsOf(line, separator));
    } else if (form !== "markdown") {
      join("lines", [{ start: line.start, end: line.end }]);
    } else if (FENCE.test(text)) {
      inFence = !inFence;
      if (inFence) add("code", []);
    } else if (inFence) {
      join("code", [{ start: line.start, end: line.end }]);
    } else if (!text.trim() || RULE.test(text)) {
      add("blank", []);
    } else if (HEADING.test(text)) {
      const [, mark, words] = HEADING.exec(text);
      add("heading", visible(line, mark.length, mark.length + words.length), { level: mark.trim().length });
    } else if (/^\s*\|.*\|\s*$/.test(text)) {
      if (!DIVIDER.test(text)) addRow(cellsOf(line, "|"));
    } else if (ITEM.test(text)) {
      add("item", visible(line, ITEM.exec(text)[0].length));
    } else {
      const parts = visible(line, QUOTE.exec(text)?.[0].length ?? 0);
      join(before?.kind === "item" ? "item" : "paragraph", parts.length ? [{ gap: " " }, ...parts] : []);
    }
  }
  return blocks;
}

const isText = (part) => !part.gap;

function nodesOf(characters, marks, parts) {
  return parts.flatMap((part, i) => {
    if (part.gap) return i ? [part.gap] : [];
    return marked(characters, marks, part.start, part.end);
  });
}

const row = (name, characters, marks, cells) =>
  element("tr", {}, ...cells.map((cell) => element(name, {}, ...nodesOf(characters, marks, cell))));

// A table of rows, of which the first is its head if it has one.
function tableOf(characters, marks, rows, head) {
  const body = element("tbody", {}, ...rows.map(({ cells }) => row("td", characters, marks, cells)));
  const parts = head ? [element("thead", {}, row("th", characters, marks, head.cells)), body] : [body];
  return element("div", { className: "table" }, element("table", {}, ...parts));
}

// The head of the table that goes on at `at`: its first row, or the header that stands before a passage.
function headBefore(characters, form, begin, at) {
  const above = blocksOf(characters, form, begin, at);
  const last = above.findLastIndex(({ kind }) => kind !== "row");
  if (above.length > last + 1) return above[last + 1];
  const lead = characters.lastIndexOf("\n", begin - 2) + 1;
  return lead > 0 && lead < begin ? blocksOf(characters, form, lead, begin).find(({ kind }) => kind === "row") : undefined;
}

const MOST_ROWS = 4;

// Of many rows those that matched, as the others say little.
function fewRows(rows, marks) {
  if (rows.length <= MOST_ROWS) return rows;
  const has = ({ parts }) => parts.some((part) => marks.some((mark) => mark.start >= part.start && mark.end <= part.end));
  const matched = rows.filter(has);
  return (matched.length ? matched : rows).slice(0, MOST_ROWS);
}

// The part of a text that matched: its words in one run, and its rows as a table, whole.
// A heading that is the title of the document already is left out.
export function excerpt(characters, marks, form, begin, { start, end, title }) {
  const nodes = [start > begin ? "… " : ""];
  let before = "";
  let rows = [];
  const first = Math.max(begin, characters.lastIndexOf("\n", Math.max(0, start - 1)) + 1);
  const next = characters.indexOf("\n", end);
  const addRows = () => {
    if (!rows.length) return;
    const head = before ? undefined : headBefore(characters, form, begin, first);
    const [top, ...others] = rows;
    const body = head || !others.length ? rows : others;
    nodes.push(tableOf(characters, marks, fewRows(body, marks), head ?? (others.length ? top : undefined)));
    before = "row";
    rows = [];
  };
  for (const block of blocksOf(characters, form, first, next < 0 ? characters.length : next)) {
    const { kind, parts } = block;
    if (kind === "row") {
      rows.push(block);
      continue;
    }
    addRows();
    const shown = parts
      .filter((part) => part.gap || (part.end > start && part.start < end))
      .map((part) => (part.gap ? part : { start: Math.max(part.start, start), end: Math.min(part.end, end) }));
    if (!shown.some(isText)) continue;
    const isRun = (kind === "paragraph" && before === "paragraph") || kind === "lines";
    if (kind === "heading" && shown.map((part) => characters.slice(part.start, part.end).join("")).join("") === title) continue;
    if (before) nodes.push(isRun ? " " : " · ");
    before = kind;
    if (kind === "lines" || kind === "code") shown.forEach((part, i) => nodes.push(i ? "\n" : "", ...marked(characters, marks, part.start, part.end)));
    else nodes.push(...nodesOf(characters, marks, shown));
  }
  addRows();
  return [...nodes, end < characters.length ? "\u00a0…" : ""];
}

// A whole text as elements: headings, lists, tables, code and paragraphs.
export function wholeText(characters, marks, form, begin = 0) {
  const made = [];
  let open = { kind: "" }; // the list or table that goes on
  for (const { kind, parts, level, cells } of blocksOf(characters, form, begin)) {
    const starts = open.kind !== kind;
    if (kind === "item") {
      if (starts) made.push((open = { kind, node: element("ul") }).node);
      open.node.append(element("li", {}, ...nodesOf(characters, marks, parts)));
    } else if (kind === "row") {
      if (starts) {
        open = { kind, node: element("tbody") };
        const head = element("thead", {}, row("th", characters, marks, cells));
        made.push(element("div", { className: "table" }, element("table", {}, head, open.node)));
      } else open.node.append(row("td", characters, marks, cells));
    } else if (kind === "heading") {
      made.push(element(`h${Math.min(6, level + 2)}`, {}, ...nodesOf(characters, marks, parts)));
    } else if (kind === "code" || kind === "lines") {
      const lines = parts.flatMap((part, i) => [i ? "\n" : "", ...marked(characters, marks, part.start, part.end)]);
      made.push(element(kind === "code" || form === "code" ? "pre" : "p", {}, ...lines));
    } else if (kind === "paragraph") made.push(element("p", {}, ...nodesOf(characters, marks, parts)));
    if (kind !== "item" && kind !== "row") open = { kind: "" };
  }
  return made;
}
