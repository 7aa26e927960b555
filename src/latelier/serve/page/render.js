// From answers of the server to elements. Texts become text nodes, never markup.

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// What a marked word has added to the score, for each strength of mark.
const LEVELS = [0.5, 0.65, 0.8];

// Characters from `from` to before `to`, with what the server marks; offsets count code points, as in Python, so texts
// are arrays of these.
export function marked(characters, marks, from, to) {
  const nodes = [];
  let end = from;
  for (const span of marks) {
    if (span.start < end || span.end > to) continue;
    nodes.push(characters.slice(end, span.start).join(""));
    const word = characters.slice(span.start, span.end).join("");
    const level = 1 + LEVELS.filter((least) => span.contribution >= least).length;
    nodes.push(element("mark", { className: `level-${level}`, title: `adds ${span.contribution.toFixed(3)} to the score` }, word));
    end = span.end;
  }
  return [...nodes, characters.slice(end, to).join("")];
}

const CODE =
  /\.(bash|c|cc|cfg|conf|cpp|cs|dart|exs?|go|h|hh|hpp|hs|ini|java|jl|jsx?|json|kt|lua|mjs|mli?|php|pl|ps1|pyi?|r|rb|rs|scala|sh|sql|svelte|swift|tf|toml|tsx?|vue|ya?ml|zig|zsh)$/i;
const DATE = /^\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?$/;
const LONGEST_VALUE = 60;
const SEPTEMBER = /\bsept\b/i; // as it is written in British English, and not read
const dates = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeZone: "UTC" });

export const isCode = (path) => CODE.test(path);
// Not each text that begins as an address is one: "http://[" is none.
export function isAddress(value) {
  if (typeof value !== "string" || !/^https?:\/\/\S+$/.test(value)) return false;
  try {
    return Boolean(new URL(value).host);
  } catch {
    return false;
  }
}
export const isDate = (value) => typeof value === "string" && DATE.test(value) && !Number.isNaN(Date.parse(value));

// The day that a person has typed, as "3 Feb 2024" or 2024-02-03; empty if it is none.
export function dayOf(typed) {
  if (isDate(typed)) return typed.slice(0, 10);
  const time = Date.parse(`${typed.replace(SEPTEMBER, "Sep")} UTC`);
  return Number.isNaN(time) ? "" : new Date(time).toISOString().slice(0, 10);
}

// A value of the metadata for people; filters get it as it is.
export function readable(value) {
  if (isDate(value)) return dates.format(new Date(value));
  if (isAddress(value)) return new URL(value).host;
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(6)));
  const characters = Array.from(String(value));
  return characters.length > LONGEST_VALUE ? `${characters.slice(0, LONGEST_VALUE).join("")}…` : String(value);
}

export function readableSize(bytes) {
  const power = Math.min(4, Math.floor(Math.log10(Math.max(1, bytes)) / 3));
  return `${(bytes / 1000 ** power).toLocaleString("en", { maximumSignificantDigits: 3 })} ${["bytes", "kB", "MB", "GB", "TB"][power]}`;
}

// How many characters of a document that no search has found are its title, or the name of its file, which stands before
// the text; what a search finds says itself where its text begins.
export function titleLength({ text, metadata }) {
  const file = String(metadata?.path ?? "").split("/").pop();
  const titles = [metadata?.title, file, file.replace(/\.[^.]+$/, "")];
  const title = titles.find((each) => typeof each === "string" && each && text?.startsWith(each) && /^\s/.test(text.slice(each.length)));
  return title ? Array.from(title).length + 1 : 0;
}

// Where a passage, from `begin` on in its own text, stands in the whole one; -1 if white space was stored as another.
export function passageAt(stored, characters, begin) {
  const place = stored.indexOf(characters.slice(begin).join(""));
  return place < 0 ? place : Array.from(stored.slice(0, place)).length;
}

// What a document is, by the name of its file: the icon that stands for it, and the word.
const KINDS = [
  ["mail", /\.(eml|mbox|msg)$/i],
  ["pdf", /\.pdf$/i],
  ["table", /\.(csv|tsv|xlsx?|ods|parquet|jsonl?)$/i],
  ["slides", /\.(pptx?|odp)$/i],
  ["web", /\.(x?html?)$/i],
  ["picture", /\.(png|jpe?g|gif|webp|tiff?|bmp)$/i],
  ["book", /\.(epub|ipynb)$/i],
];
const KIND_NAMES = { pdf: "PDF", code: "Source code", web: "Web page" };

export function kindOf(path, { from, date } = {}) {
  const [kind] = KINDS.find(([, pattern]) => pattern.test(path)) ?? [from && date ? "mail" : "text"];
  return kind === "text" && isCode(path) ? "code" : kind;
}

const SVG = "http://www.w3.org/2000/svg";

export function icon(kind) {
  const made = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `page/icons.svg#${kind}`);
  made.classList.add("icon");
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", KIND_NAMES[kind] ?? `${kind[0].toUpperCase()}${kind.slice(1)}`);
  made.append(use);
  return made;
}

const LEAST_SHOWN = 0.35;

// The similarities of the words of a query (rows) with those of a document (columns): the best of their tokens.
export function heatMap(explanation) {
  const { query_words, document_words, similarities } = explanation;
  const special = (word) => (word.is_special ? { className: "special", title: "a token of the model's own" } : {});
  // Of vectors that are stored in few bits, or rounded, a similarity may come out above 1.
  const similarity = (asked, word) => Math.min(1, Math.max(...asked.positions.flatMap((i) => word.positions.map((j) => similarities[i][j]))));
  const rows = query_words.map((asked) => document_words.map((word) => similarity(asked, word)));
  // Columns where nothing matches are folded; the best of each word of the query always stays.
  const kept = new Set(rows.map((values) => values.indexOf(Math.max(...values))));
  document_words.forEach((_, j) => {
    if (rows.some((values, i) => !query_words[i].is_special && values[j] >= LEAST_SHOWN)) kept.add(j);
  });
  const className = (j) => (kept.has(j) ? "" : kept.has(j - 1) || j === 0 ? "folded gap" : "folded");
  const head = element("tr", {}, element("th", { scope: "col", className: "corner" }, "query \\ document"));
  document_words.forEach((word, j) => {
    const cell = element("th", { scope: "col", ...special(word) }, word.word);
    if (className(j)) cell.className += ` ${className(j)}`;
    head.append(cell);
  });
  const body = element("tbody");
  query_words.forEach((asked, i) => {
    const values = rows[i];
    const best = values.indexOf(Math.max(...values));
    const line = element("tr", {}, element("th", { scope: "row", ...special(asked) }, asked.word));
    values.forEach((value, j) => {
      const level = Math.max(0, Math.min(6, Math.round(value * 6)));
      const title = `${asked.word} and ${document_words[j].word}: ${value.toFixed(3)}`;
      const cell = element("td", { className: `h${level} ${className(j)}`, title, ariaLabel: value.toFixed(2) });
      if (j === best) {
        cell.classList.add("best");
        cell.textContent = value.toFixed(2);
      }
      line.append(cell);
    });
    body.append(line);
  });
  const caption = element("caption", { className: "hidden" }, "Similarity of each word of the query with each of the document");
  const table = element("table", {}, caption, element("thead", {}, head), body);
  const heat = element("div", { className: "heat", tabIndex: 0, role: "region", ariaLabel: "Heat map" }, table);
  if (kept.size === document_words.length) return element("div", {}, heat);
  const unfold = element("button", { type: "button", ariaPressed: "false" }, `Show all ${document_words.length} words`);
  unfold.addEventListener("click", () => {
    unfold.ariaPressed = String(heat.classList.toggle("whole"));
  });
  return element("div", {}, heat, unfold);
}

export function drawn(bitmap, label) {
  const canvas = element("canvas", { width: bitmap.width, height: bitmap.height, role: "img", ariaLabel: label });
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  return canvas;
}

const TINT = [217, 72, 15];
const STRONGEST = 153; // of 255

// A page and, over it, how similar its patches are to the word that is chosen; words have one scale.
export function pageMap({ page, words }, sheet) {
  const table = element("ul", { className: "terms" });
  const term = (text, value) => table.append(element("li", {}, text, element("small", {}, value.toFixed(3))));
  for (const each of words) term(each.matched ? `${each.word} → ${each.matched} ` : `${each.word} `, each.contribution);
  const shown = element("div", { className: "sheet" }, sheet);
  if (!page.maps.length) {
    const why = element("p", {}, `Which part of the page matched cannot be shown: ${page.reason}.`);
    return element("div", {}, why, shown, table);
  }
  const [rows, columns] = [page.maps[0].values.length, page.maps[0].values[0].length];
  const overlay = element("canvas", { width: columns, height: rows, className: "map", role: "img" });
  const place = element("p", { className: "where", role: "status" });
  const choices = element("div", { className: "choices", role: "group", ariaLabel: "Word of the query" });
  const choose = (i) => {
    const values = page.maps[i].values.flat();
    const range = i ? page.maps.slice(1).flatMap((map) => map.values.flat()) : values;
    const low = range.reduce((a, b) => Math.min(a, b));
    const high = range.reduce((a, b) => Math.max(a, b));
    const tint = (value) => Math.round(STRONGEST * ((value - low) / Math.max(high - low, 1e-9)) ** 2);
    const pixels = new ImageData(Uint8ClampedArray.from(values.flatMap((value) => [...TINT, tint(value)])), columns, rows);
    overlay.getContext("2d").putImageData(pixels, 0, 0);
    const best = values.indexOf(values.reduce((a, b) => Math.max(a, b)));
    const where = `row ${Math.floor(best / columns) + 1}, column ${(best % columns) + 1} of ${rows} x ${columns} patches`;
    overlay.ariaLabel = place.textContent = `${page.maps[i].word}: strongest in ${where}`;
    [...choices.children].forEach((button, j) => (button.ariaPressed = String(i === j)));
  };
  page.maps.forEach(({ word }, i) => {
    const button = element("button", { type: "button" }, word);
    button.addEventListener("click", () => choose(i));
    choices.append(button);
  });
  choose(0);
  shown.append(overlay);
  return element("div", { className: "page-map" }, choices, place, shown, table);
}

// The stages of a search, with the time of each; the total stands beside them.
export function stageTimes(milliseconds) {
  return Object.entries(milliseconds)
    .filter(([stage]) => stage !== "total")
    .map(([stage, value]) => element("li", {}, `${stage} ${value.toFixed(1)} ms`));
}
