// The page: its state is in its form and in the address, so a link to a search can be shared.

import {
  RequestError,
  describe,
  describeFields,
  explain,
  findIds,
  keepsIntegers,
  listIndexes,
  picture,
  read,
  search,
  setToken,
  whyNot,
} from "./api.js";
import {
  HEADINGS,
  drawn,
  element,
  heatMap,
  isAddress,
  isCode,
  isDate,
  marked,
  pageMap,
  passageAt,
  readable,
  readableSize,
  stageTimes,
  titleLength,
  wholeLines,
  wholeWords,
} from "./render.js";
import { excerpt, formOf, keepsLines, wholeText } from "./text.js";

const DEBOUNCE_MS = 150;
const PATIENCE_MS = 300; // then the page says that it searches
const SETTLED_MS = 1000; // after such a pause a search is an entry of the history, and one of the recent ones
const MOST_RECENT = 5;
const LEAST_SNIPPET = 200; // characters, where the title has matched
const LONGEST_SNIPPET = 600; // before it is known what matches
const FREQUENT = 10; // values that are shown of a field of many
const MOST_RESULTS = 1000; // as the server returns at once
const OPERATORS = ["=", "!=", "<", "<=", ">", ">=", "contains"];
const at = (id) => document.getElementById(id);
const choices = ["index", "mode", "effort", "k"];
const defaults = { mode: "vectors", effort: "balanced", k: "10" };

let indexes = [];
let running = new AbortController();
let timer = 0;
let settling = 0;
let isSettled = false;
let wanted = 0; // results

const current = () => indexes.find((index) => index.name === at("index").value);

function condition(field = "", operator = "=", value = "") {
  const fields = element("select", { ariaLabel: "Field" });
  for (const name of current()?.fields ?? []) fields.append(element("option", {}, name));
  if (field) fields.value = field;
  const operators = element("select", { ariaLabel: "Comparison" });
  for (const name of OPERATORS) operators.append(element("option", {}, name));
  operators.value = operator;
  const values = element("datalist", { id: `values-${at("conditions").childElementCount}-${Date.now()}` });
  const input = element("input", { type: "text", value, ariaLabel: "Value" });
  input.setAttribute("list", values.id);
  const complete = async () => {
    const asked = { field: fields.value, prefix: input.value };
    const [found] = await describeFields(at("index").value, asked).catch(() => []);
    if (input.value !== asked.prefix) return;
    values.replaceChildren(...(found?.values ?? []).map((each) => element("option", { value: spelled(each.value) })));
  };
  for (const event of ["focus", "input"]) input.addEventListener(event, complete);
  const remove = element("button", { type: "button", ariaLabel: "Remove this filter" }, "×");
  const item = element("li", {}, fields, operators, input, values, remove);
  remove.addEventListener("click", () => {
    item.remove();
    at("filters").firstElementChild.focus();
    schedule();
  });
  at("conditions").append(item);
  return input;
}

function conditions() {
  return [...at("conditions").children]
    .map((item) => [...item.querySelectorAll("select, input")].map((control) => control.value))
    .filter(([field, , value]) => field && value !== "");
}

// What a person types is a number if it looks like one, true or false, or a text; in double quotes it is always a text.
function parameter(typed) {
  if (/^".*"$/s.test(typed)) return typed.slice(1, -1);
  if (typed === "true" || typed === "false") return typed === "true";
  if (/^-?\d+$/.test(typed.trim()) && !Number.isSafeInteger(Number(typed))) return BigInt(typed.trim());
  return typed.trim() !== "" && Number.isFinite(Number(typed)) ? Number(typed) : typed;
}

// The spelling of a value that `parameter` turns back into it; an empty one would be no condition.
function spelled(value) {
  // A float: its digits in full would be those of another integer.
  if (Number.isInteger(value) && !Number.isSafeInteger(value)) return value.toExponential();
  const isClear = typeof value !== "string" || (value !== "" && parameter(value) === value);
  return isClear ? String(value) : `"${value}"`;
}

// Whether a condition can hold a value: a field that filters can name, and a value that its input takes as it is.
function canFilterBy(field, value) {
  const isRounded = !keepsIntegers && Number.isInteger(value) && !Number.isSafeInteger(value);
  return current().fields.includes(field) && !/[\r\n]/.test(value) && !isRounded;
}

function filters() {
  const parsed = { filter: [], parameters: [] };
  for (const [field, operator, typed] of conditions()) {
    const quoted = `"${field.replaceAll('"', '""')}"`;
    const value = parameter(typed);
    parsed.filter.push(operator === "contains" ? `instr(${quoted}, ?) > 0` : `${quoted} ${operator} ?`);
    parsed.parameters.push(operator === "contains" ? String(value) : value);
  }
  return parsed.filter.length ? parsed : {};
}

function filterBy(field, value, operator = "=") {
  const wanted = [field, operator, spelled(value)];
  if (conditions().some((present) => present.every((part, i) => part === wanted[i]))) return;
  condition(...wanted).focus();
  schedule();
}

// Leaves the condition out of which field and comparison, or all three parts, are these; says whether there was one.
function removeCondition(...parts) {
  const isThis = (item) => {
    const controls = [...item.querySelectorAll("select, input")];
    return parts.every((part, i) => controls[i].value === part);
  };
  const found = [...at("conditions").children].filter(isThis);
  for (const item of found) item.remove();
  return found.length > 0;
}

function limit(field, operator, type, end) {
  const label = `${field} ${operator === ">=" ? "from" : "to"}`;
  const input = element("input", { type, placeholder: readable(end), ariaLabel: label });
  if (type === "number") input.step = "any";
  input.addEventListener("input", (event) => event.stopPropagation());
  input.addEventListener("change", () => {
    removeCondition(field, operator);
    // Points in time of a day begin with its date.
    const isLast = type === "date" && operator === "<=" && end.length > 10;
    if (input.value) condition(field, operator, isLast ? `${input.value}T24` : input.value);
    schedule();
  });
  return input;
}

// The values of a field with their counts, of many texts those of several documents; or limits of numbers and dates.
function facet({ field, values, is_complete: isComplete, least, greatest }) {
  const areDates = isDate(least) && isDate(greatest);
  const choices = element("div");
  if (values && !areDates && (isComplete || typeof least !== "number")) {
    const shown = isComplete ? values : values.filter((each) => each.documents > 1).slice(0, FREQUENT);
    for (const { value, documents } of shown) {
      const wanted = [field, "=", spelled(value)];
      const count = element("small", {}, documents.toLocaleString("en"));
      const button = element("button", { type: "button" }, `${readable(value)} `, count);
      button.wanted = wanted;
      button.addEventListener("click", () => {
        if (!removeCondition(...wanted)) condition(...wanted);
        schedule();
      });
      choices.append(button);
    }
    if (!isComplete && shown.length) choices.append(element("small", {}, "and others: see below"));
  } else if (areDates || typeof least === "number") {
    const type = areDates ? "date" : "number";
    choices.append(limit(field, ">=", type, least), " to ", limit(field, "<=", type, greatest));
    if (areDates) choices.append(element("small", {}, ` ${readable(least)} to ${readable(greatest)}`));
  }
  return choices.childElementCount ? [element("fieldset", {}, element("legend", {}, field), choices)] : [];
}

function pressFacets() {
  const present = conditions().map(String);
  for (const button of at("facets").querySelectorAll("button")) button.ariaPressed = String(present.includes(String(button.wanted)));
}

async function showFacets() {
  at("facets").replaceChildren();
  const { name, error } = current() ?? {};
  if (!at("filters").open || !name || error) return;
  const fields = await describeFields(name).catch(() => []);
  if (at("index").value !== name) return;
  at("facets").replaceChildren(...fields.flatMap(facet));
  pressFacets();
}

const reading = () => (at("whole").checked ? { whole_query: true } : {});

function options() {
  const { kind } = current();
  const effort = kind === "IVF" ? { effort: at("effort").value } : {};
  return { k: Number(at("k").value), mode: at("mode").value, ...effort, ...reading(), ...filters() };
}

function remember() {
  const address = new URLSearchParams();
  if (at("query").value) address.set("q", at("query").value);
  for (const name of choices) {
    const usual = name === "index" ? indexes[0].name : defaults[name];
    if (at(name).value !== usual) address.set(name, at(name).value);
  }
  if (at("whole").checked) address.set("whole", "true");
  for (const triple of conditions()) address.append("filter", JSON.stringify(triple));
  const query = address.toString();
  document.title = at("query").value ? `${at("query").value} - Latelier` : "Latelier";
  const wanted = query ? `?${query}` : location.pathname;
  if (wanted === (location.search || location.pathname)) return;
  history[isSettled ? "pushState" : "replaceState"](null, "", wanted);
  isSettled = false;
}

const recentKey = () => `recent ${at("index").value}`;
const recent = () => JSON.parse(localStorage.getItem(recentKey()) ?? "[]");

// Called when nothing has been typed for a while after an answer.
function settle(query, found) {
  isSettled = true;
  if (!found) return;
  const kept = [query, ...recent().filter((each) => each !== query)].slice(0, MOST_RECENT);
  localStorage.setItem(recentKey(), JSON.stringify(kept));
}

function searchButtons(title, queries) {
  const list = element("ul");
  for (const query of queries) {
    const button = element("button", { type: "button" }, query);
    button.addEventListener("click", () => {
      at("query").value = query;
      run();
    });
    list.append(element("li", {}, button));
  }
  return queries.length ? [element("h2", {}, title), list] : [];
}

// What there is to search for, where no search has been made.
async function invite() {
  const { name, error } = current();
  at("start").hidden = Boolean(error);
  if (error) return;
  const index = await describe(name).catch(() => null);
  if (!index || at("index").value !== name || at("query").value.trim()) return;
  const facts = {
    Documents: index.documents.toLocaleString("en"),
    Size: index.bytes ? readableSize(index.bytes) : "",
    "Last change": index.modified ? readable(index.modified) : "",
    Fields: index.fields.join(", "),
    Model: index.model ?? "",
  };
  const rows = Object.entries(facts).filter(([, value]) => value);
  const about = element("dl", {}, ...rows.flatMap(([fact, value]) => [element("dt", {}, fact), element("dd", {}, value)]));
  at("start").replaceChildren(...searchButtons("Recent", recent()), ...searchButtons("For example", index.examples), about);
}

// Searches that may find more than one that found nothing.
function offers() {
  const list = [];
  const offer = (text, change) => {
    const button = element("button", { type: "button" }, text);
    button.addEventListener("click", () => {
      change();
      run();
    });
    list.push(element("li", {}, button));
  };
  if (conditions().length) offer("Search without the filters", () => at("conditions").replaceChildren());
  if (at("mode").value !== "vectors") offer("Search by meaning", () => (at("mode").value = "vectors"));
  return list;
}

// Takes over the address and returns what of it this server does not know.
function restore() {
  const address = new URLSearchParams(location.search);
  const unknown = [];
  at("query").value ||= address.get("q") ?? ""; // what has been typed meanwhile stays
  at("whole").checked = address.has("whole");
  for (const [name, usual] of Object.entries(defaults)) if (!address.has(name)) at(name).value = usual;
  for (const name of choices.filter((name) => address.has(name))) {
    const control = at(name);
    const wanted = address.get(name);
    if ([...control.options].some((option) => option.value === wanted)) control.value = wanted;
    else unknown.push(`${name} ${wanted}`);
  }
  // The filters of an unknown index are not those of another one.
  const fields = (address.get("index") ?? current()?.name) === current()?.name ? current()?.fields ?? [] : [];
  at("conditions").replaceChildren();
  for (const text of address.getAll("filter")) {
    let field, operator, value;
    try {
      [field, operator, value] = JSON.parse(text);
    } catch {
      // A damaged link: it has no field, so it is unknown.
    }
    if (fields.includes(field) && OPERATORS.includes(operator)) condition(field, operator, String(value));
    else unknown.push(`filter ${text}`);
  }
  return unknown;
}

function say(message, isError = false) {
  at("status").textContent = message;
  at("status").classList.toggle("error", isError);
}

function fail(error) {
  if (error.name === "AbortError") return;
  if (error instanceof RequestError && error.status === 401) at("token-row").hidden = false;
  say(error.message, true);
}

// Links lead to other hosts, which get no address of this page.
const link = (address, ...shown) => element("a", { href: address, rel: "noopener noreferrer", target: "_blank" }, ...shown);

function chip(field, value) {
  if (isAddress(value)) return link(value, `${field}: ${readable(value)}`);
  const label = `${field}: ${readable(value)}`;
  if (!canFilterBy(field, value)) return element("span", {}, label);
  const button = element("button", { type: "button", title: `Filter by this value: ${value}` }, label);
  // Hardly two documents have the same second, so a point in time stands for its day.
  const day = isDate(value) && value.length > 10 ? [value.slice(0, 10), "contains"] : [value];
  button.addEventListener("click", () => filterBy(field, ...day));
  return button;
}

const THUMBNAIL = 240;
const SHEET = 1200; // pixels, of a page with a map
const isPicture = ({ metadata }) => Boolean(metadata?.checksum && metadata.width && metadata.height);
const SIZES = ["image", "width", "height", "checksum"];

const fileName = (result) => (isPicture(result) && result.metadata.image ? String(result.metadata.image).split("/").pop() : undefined);

// The picture of a document, small, which is asked for when it comes into view.
function thumbnail(id, label) {
  const place = element("div", { className: "thumbnail" });
  const load = async ([entry], observer) => {
    if (!entry.isIntersecting) return;
    observer.disconnect();
    const shown = await picture(at("index").value, id, THUMBNAIL).then((bitmap) => drawn(bitmap, label), (error) => error.message);
    place.replaceChildren(shown);
  };
  new IntersectionObserver(load).observe(place);
  return place;
}

async function showPage(query, result, label) {
  const asked = { query, ids: [result.id], starts: [result.start] };
  const missing = (error) => element("p", { className: "error" }, error.message);
  const sheet = picture(at("index").value, result.id, SHEET).then((bitmap) => drawn(bitmap, label), missing);
  const [explanation] = await explain(at("index").value, asked);
  return pageMap(explanation, await sheet);
}

// Steps through what matched in a whole text, and closes it.
function matchBar(text, close) {
  let current = -1;
  const count = element("span", { role: "status" });
  const step = (by) => {
    const strong = [...text.querySelectorAll("mark.level-3, mark.level-4")];
    const marks = strong.length ? strong : [...text.querySelectorAll("mark")];
    for (const mark of marks) mark.classList.remove("current");
    count.textContent = marks.length ? "" : "No word matches.";
    if (!marks.length) return;
    current = (current + by + marks.length) % marks.length;
    marks[current].classList.add("current");
    marks[current].scrollIntoView({ block: "center" });
    count.textContent = `${current + 1} of ${marks.length}`;
  };
  const button = (label, act) => {
    const made = element("button", { type: "button" }, label);
    made.addEventListener("click", act);
    return made;
  };
  const previous = button("Previous match", () => step(current < 0 ? 0 : -1));
  const next = button("Next match", () => step(1));
  const bar = element("div", { className: "matches", hidden: true }, previous, next, count, button("Close", close));
  bar.begin = () => {
    current = -1;
    step(1);
  };
  return bar;
}

// Fields that say nothing, since all results have the same value.
function sharedFields(results) {
  if (results.length < 2) return new Set();
  const [first, ...others] = results.map((result) => result.metadata ?? {});
  const text = (value) => JSON.stringify(value, (_, part) => (typeof part === "bigint" ? `${part}n` : part));
  return new Set(Object.keys(first).filter((field) => others.every((metadata) => text(metadata[field]) === text(first[field]))));
}

function resultItem(query, result, shared) {
  const id = String(result.id);
  const metadata = result.metadata ?? {};
  const whole = Array.from(result.text ?? "(stored without its text)");
  const begin = titleLength(result);
  const [name, ...headings] = (whole.slice(0, begin).join("").trim() || String(metadata.title ?? fileName(result) ?? id)).split(HEADINGS);
  const nameEnd = begin && Array.from(name).length;
  const file = String(metadata.path ?? (isCode(id) ? id : ""));
  const form = formOf(file);
  const isProgram = form === "code";
  const text = element("div", { className: isProgram ? "text code short" : "text short" });
  let spans = [];
  let snippet = { start: begin, end: whole.length };
  const isPage = isPicture(result);
  const map = element("button", { type: "button", ariaExpanded: "false" }, isPage ? "Which part of the page?" : "Heat map");
  const more = element("button", { type: "button", ariaExpanded: "false" }, "Whole text");
  const place = element("div");
  const { linkPrefix } = document.documentElement.dataset;
  const stored = linkPrefix && metadata.path && linkPrefix + String(metadata.path).split("/").map(encodeURIComponent).join("/");
  const address = ["url", "link", "source"].map((field) => metadata[field]).find(isAddress) ?? stored;
  const title = address ? link(address, name) : element("span", {}, name);
  const path = element("span", {}, headings.join(HEADINGS));
  const position = element("span", {}, metadata.page ? `page ${metadata.page}` : "");
  const where = element("p", { className: "where" }, element("span", {}, name === id ? "" : id), path, position);
  const isTold = (field) => field === "page" || shared.has(field) || (isPage && SIZES.includes(field));
  const shown = Object.entries(metadata).filter(
    ([field, value]) => value !== null && typeof value !== "object" && !isTold(field) && ![id, name].includes(value),
  );
  const chips = shown.map(([field, value]) => element("li", {}, chip(field, value)));
  const short = () => {
    const end = Math.min(snippet.end, snippet.start + LONGEST_SNIPPET);
    text.replaceChildren(...excerpt(whole, spans, form, begin, { start: snippet.start, end }));
  };
  const long = () => text.replaceChildren(...wholeText(whole, spans, form, begin));
  const matches = matchBar(text, () => {
    more.click();
    item.focus();
  });
  map.addEventListener("click", async () => {
    const open = map.ariaExpanded === "true";
    map.ariaExpanded = String(!open);
    place.replaceChildren();
    if (open) return;
    try {
      if (isPage) return place.replaceChildren(await showPage(query, result, `Picture of ${name}`));
      const asked = { query, ids: [result.id], starts: [result.start], similarities: true, ...reading() };
      const [explanation] = await explain(at("index").value, asked);
      place.replaceChildren(heatMap(explanation));
    } catch (error) {
      place.replaceChildren(element("p", { className: "error" }, error.message));
    }
  });
  more.addEventListener("click", async () => {
    const open = !text.classList.toggle("short");
    more.ariaExpanded = String(open);
    matches.hidden = !open;
    if (!open) return short();
    long();
    if (result.start === null) return matches.begin();
    const document = await read(at("index").value, id).catch(() => null);
    const shift = document?.text ? passageAt(document.text, whole, begin) : -1;
    if (text.classList.contains("short")) return;
    if (shift >= 0) {
      const moved = spans
        .filter((span) => span.start >= begin)
        .map((span) => ({ ...span, start: span.start + shift - begin, end: span.end + shift - begin }));
      text.replaceChildren(...wholeText(Array.from(document.text), moved, form));
    }
    matches.begin();
  });
  const tools = element("div", { className: "tools" }, map, ...(isPage && !result.text ? [] : [more]));
  const score = element("span", { className: "score", title: "score" }, result.score.toFixed(3));
  const head = element("div", { className: "head" }, element("h2", {}, title), score);
  const foot = element("div", { className: "foot" }, element("ul", { className: "metadata", ariaLabel: "Metadata" }, ...chips), tools);
  const item = element("li", { tabIndex: -1 }, head, where, matches, text, foot, place);
  short();
  if (isPage) {
    item.prepend(thumbnail(result.id, `Picture of ${name}`));
    item.classList.add("picture");
  }
  item.mark = (explanation) => {
    if (explanation.text !== result.text) return;
    spans = explanation.spans;
    const { start, end } = explanation.snippet;
    snippet = { start: Math.max(start, begin), end: Math.max(end, Math.min(begin + LEAST_SNIPPET, whole.length)) };
    snippet = isProgram ? wholeLines(whole, snippet, begin) : wholeWords(whole, snippet, begin);
    if (begin) {
      title.replaceChildren(...marked(whole, spans, 0, nameEnd));
      path.replaceChildren(...marked(whole, spans, Math.min(nameEnd + HEADINGS.length, begin), begin));
    }
    if (text.classList.contains("short")) short();
    else long();
  };
  // The line of what matched best, where neither a page nor a heading says where it is.
  item.needsLine = result.text !== null && !headings.length && !metadata.page && keepsLines(file);
  item.locate = (stored) => {
    if (!result.start && snippet.start === begin && snippet.end === whole.length) return;
    const shift = result.start ? passageAt(stored, whole, begin) : begin;
    const inside = spans.filter(({ start, end }) => start >= snippet.start && end <= snippet.end);
    const best = inside.reduce((a, b) => (b.contribution > a.contribution ? b : a), inside[0] ?? snippet);
    const before = Array.from(stored).slice(0, shift + best.start - begin);
    const line = before.filter((character) => character === "\n").length + 1;
    if (shift >= 0 && line > 1) position.textContent = `line ${line.toLocaleString("en")}`;
  };
  return item;
}

// One document that cannot be shown says so, and hides no other one.
function itemOf(query, result, shared) {
  try {
    return resultItem(query, result, shared);
  } catch (error) {
    const why = element("p", { className: "error" }, `This document cannot be shown: ${error.message}`);
    const head = element("div", { className: "head" }, element("h2", {}, String(result.id)));
    return Object.assign(element("li", { tabIndex: -1 }, head, why), { mark() {}, needsLine: false });
  }
}

function markItem(item, explanation) {
  try {
    item.mark(explanation);
  } catch (error) {
    console.error(error); // the result stays without marks
  }
}

async function highlight(query, results, items, signal) {
  const known = results.filter((result) => result.text !== null && !isPicture(result));
  if (!known.length) return;
  let explanations;
  try {
    const starts = known.map((result) => result.start);
    const asked = { query, ids: known.map((result) => result.id), starts, ...reading() };
    explanations = await explain(at("index").value, asked, signal);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return; // documents with pooled tokens, for instance, cannot be explained: the results stay without marks
  }
  explanations.forEach((explanation, i) => markItem(items[results.indexOf(known[i])], explanation));
  for (const result of known) {
    const item = items[results.indexOf(result)];
    if (!item.needsLine) continue;
    const { text } = result.start ? await read(at("index").value, result.id, signal).catch(() => ({})) : result;
    if (text) item.locate(text);
  }
}

// Searches; with `isMore`, for as many results again, which are put after those that are shown.
async function run(isMore = false) {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const query = at("query").value;
  if (!indexes.length) return; // start() searches when they are known
  remember();
  clearTimeout(settling);
  wanted = Number(at("k").value) + (isMore ? wanted : 0);
  at("times").replaceChildren();
  at("offers").replaceChildren();
  pressFacets();
  at("start").hidden = at("why-not").hidden = at("timing").hidden = at("more").hidden = true;
  if (!query.trim()) {
    at("results").replaceChildren();
    say("");
    await invite();
    return;
  }
  at("why-not").hidden = at("timing").hidden = false;
  at("results").ariaBusy = "true";
  const patience = setTimeout(() => say("Searching …"), PATIENCE_MS);
  try {
    const begin = performance.now();
    const answer = await search(at("index").value, { query, ...options(), k: wanted }, signal);
    const total = performance.now() - begin;
    clearTimeout(patience);
    const [found] = answer.results;
    const present = isMore ? at("results").children.length : 0;
    const results = found.slice(present);
    const shared = sharedFields(found);
    const items = results.map((result) => itemOf(query, result, shared));
    if (isMore) at("results").append(...items);
    else at("results").replaceChildren(...items);
    if (isMore) items[0]?.focus();
    at("more").hidden = found.length < wanted || wanted >= MOST_RESULTS;
    const count = found.length === 1 ? "1 document" : `${found.length} documents`;
    const [unread] = answer.unread;
    const cut = unread ? ` The query is too long: its last ${unread} tokens were not read.` : "";
    const isReadable = unread && current().query_length + unread <= current().longest_query;
    at("whole-label").hidden = !isReadable && !at("whole").checked;
    say((found.length ? `${count} in ${total.toFixed(0)} ms` : "No document found.") + (cut && `.${cut}`));
    if (!found.length) at("offers").replaceChildren(...offers());
    settling = setTimeout(settle, SETTLED_MS, query, found.length > 0);
    const stages = { ...answer.milliseconds, network: Math.max(0, total - (answer.milliseconds.total ?? total)) };
    at("times").replaceChildren(...stageTimes(stages));
    if (at("mode").value !== "keywords" && results.length) {
      await highlight(query, results, items, signal);
      const highlights = performance.now() - begin - total;
      at("times").replaceChildren(...stageTimes({ ...stages, highlights }));
    }
  } catch (error) {
    fail(error);
  } finally {
    clearTimeout(patience);
    if (!signal.aborted) at("results").ariaBusy = "false";
  }
}

function schedule() {
  clearTimeout(timer);
  timer = setTimeout(run, DEBOUNCE_MS);
}

// What a cause means; the report has the numbers.
const CAUSES = {
  filtered: "The filters leave it out.",
  not_probed: "It is in a part of the index that a search of this effort does not look at.",
  not_candidate: "A search of this effort gives up on it early.",
  binary_stage: "A search of this effort gives up on it early.",
  query_rounding: "The query was rounded to be compared faster.",
  scored_lower: "Other documents match better.",
  tied: "Other documents match as well.",
  truncated: "The part of its text that matches was too long to be indexed.",
  below_threshold: "It matches less than was asked for.",
  no_query_word: "It has none of the words.",
  keyword_rank: "Other documents have more of the words.",
  vector_rank: "The meaning of other documents is closer.",
};

// The changes that the page can make itself, as what they do and the words for it.
const CHANGES = {
  k: (k) => [`show ${k} results`, () => choose("k", k)],
  mode: (mode) => [`search by ${at("mode").querySelector(`[value=${mode}]`).textContent}`, () => choose("mode", mode)],
  effort: (effort) => [`search with effort ${effort}`, () => choose("effort", effort)],
  filter: () => ["leave out the filters", () => at("conditions").replaceChildren()],
  parameters: () => ["", () => {}],
};

function choose(name, value) {
  const present = [...at(name).options].some((option) => option.value === String(value));
  if (!present) at(name).append(element("option", {}, String(value)));
  at(name).value = String(value);
}

function changeItem({ target, arguments: changed }, text) {
  const names = Object.keys(changed);
  if (target !== "search" || names.some((name) => !(name in CHANGES))) return element("li", {}, text);
  const steps = names.map((name) => CHANGES[name](changed[name]));
  const label = steps.map(([words]) => words).filter(Boolean).join(" and ");
  const button = element("button", { type: "button" }, label[0].toUpperCase() + label.slice(1));
  button.addEventListener("click", () => {
    for (const [, step] of steps) step();
    run();
  });
  return element("li", {}, button);
}

async function complete() {
  const begun = at("why-not-id").value;
  const ids = await findIds(at("index").value, begun).catch(() => []);
  if (at("why-not-id").value !== begun) return;
  at("ids").replaceChildren(...ids.map((id) => element("option", { value: id })));
}

async function ask(event) {
  event.preventDefault();
  const answer = at("why-not-answer");
  answer.textContent = "Searching for the causes…";
  try {
    const asked = { query: at("query").value, id: at("why-not-id").value, ...options(), k: wanted };
    const { is_found: isFound, report, causes, changes } = await whyNot(at("index").value, asked);
    const reasons = causes.map(({ kind, text }) => {
      const numbers = `${text[0].toUpperCase()}${text.slice(1)}.`;
      return kind in CAUSES ? element("li", {}, `${CAUSES[kind]} `, element("small", {}, numbers)) : element("li", {}, numbers);
    });
    answer.replaceChildren(element("p", {}, report.split("\n")[0]), element("ul", {}, ...reasons));
    if (isFound || !changes.length) return;
    const texts = report.split("\n").slice(-changes.length);
    const cures = changes.map((change, i) => changeItem(change, texts[i].trim()));
    answer.append(element("p", {}, "It is found if you"), element("ul", { className: "cures" }, ...cures));
  } catch (error) {
    answer.textContent = error.message;
  }
}

function describeIndex() {
  const index = current();
  if (!index) return;
  const size = index.documents === 1 ? "1 document" : `${index.documents?.toLocaleString("en")} documents`;
  at("about").textContent = `${index.name}: ${index.error ?? size}`;
  at("filters").hidden = !index.fields.length;
  at("effort").parentElement.hidden = index.kind !== "IVF";
}

async function start() {
  try {
    indexes = await listIndexes();
  } catch (error) {
    fail(error);
    return;
  }
  at("index").replaceChildren(...indexes.map((index) => element("option", {}, index.name)));
  at("index-label").hidden = indexes.length < 2;
  if (document.activeElement === at("token")) at("query").focus();
  at("token-row").hidden = true;
  const unknown = restore();
  describeIndex();
  if (!unknown.length) return run();
  clearTimeout(timer);
  const names = unknown.join(", ");
  say(`Not searched, because the address names what is unknown here: ${names}. Press Search to leave it out.`, true);
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(timer);
  isSettled = true;
  run();
});
at("form").addEventListener("input", schedule);
at("index").addEventListener("change", () => {
  at("conditions").replaceChildren();
  describeIndex();
  showFacets();
});
at("filters").addEventListener("toggle", showFacets);
at("add-condition").addEventListener("click", () => condition().focus());
at("why-not-id").addEventListener("input", complete);
at("why-not-id").addEventListener("focus", complete);
at("more").addEventListener("click", () => run(true));
at("whole").addEventListener("change", () => run());
at("why-not-form").addEventListener("submit", ask);
at("token").addEventListener("change", () => {
  setToken(at("token").value);
  start();
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    at("query").focus();
  } else if (event.key === "Escape" && (!typing || event.target === at("query"))) {
    at("query").value = "";
    at("query").focus();
    run();
  } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && (!typing || event.target === at("query"))) {
    const items = [...at("results").children];
    const next = items.indexOf(event.target.closest("#results > li")) + (event.key === "ArrowDown" ? 1 : -1);
    if (!items.length || next >= items.length || next < -1) return;
    event.preventDefault();
    (items[next] ?? at("query")).focus();
  } else if (event.key === "Enter" && event.target.matches("#results > li")) {
    event.target.querySelector(".tools button:last-child").click();
  }
});
addEventListener("popstate", () => {
  if (!indexes.length) return;
  at("query").value = "";
  at("index").value = new URLSearchParams(location.search).get("index") ?? indexes[0].name;
  restore();
  describeIndex();
  run();
});
start();
