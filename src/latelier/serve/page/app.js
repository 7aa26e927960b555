// The page: its state is in its form and in the address, so a link to a search can be shared.

import { RequestError, describe, explain, keepsIntegers, listIndexes, read, search, setToken, whyNot } from "./api.js";
import { element, heatMap, highlighted, stageTimes } from "./render.js";

const DEBOUNCE_MS = 150;
const PATIENCE_MS = 300; // then the page says that it searches
const SETTLED_MS = 1000; // after such a pause a search is an entry of the history, and one of the recent ones
const MOST_RECENT = 5;
const OPERATORS = ["=", "!=", "<", "<=", ">", ">=", "contains"];
const at = (id) => document.getElementById(id);
const choices = ["index", "mode", "effort", "k"];
const defaults = { mode: "vectors", effort: "balanced", k: "10" };

let indexes = [];
let running = new AbortController();
let timer = 0;
let settling = 0;
let isSettled = false;

const current = () => indexes.find((index) => index.name === at("index").value);

function condition(field = "", operator = "=", value = "") {
  const fields = element("select", { ariaLabel: "Field" });
  for (const name of current()?.fields ?? []) fields.append(element("option", {}, name));
  if (field) fields.value = field;
  const operators = element("select", { ariaLabel: "Comparison" });
  for (const name of OPERATORS) operators.append(element("option", {}, name));
  operators.value = operator;
  const input = element("input", { type: "text", value, ariaLabel: "Value" });
  const remove = element("button", { type: "button", ariaLabel: "Remove this filter" }, "×");
  const item = element("li", {}, fields, operators, input, remove);
  remove.addEventListener("click", () => {
    item.remove();
    at("add-condition").focus();
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

function filterBy(field, value) {
  const wanted = [field, "=", spelled(value)];
  if (conditions().some((present) => present.every((part, i) => part === wanted[i]))) return;
  condition(...wanted).focus();
  schedule();
}

function options() {
  const { kind } = current();
  const effort = kind === "IVF" ? { effort: at("effort").value } : {};
  return { k: Number(at("k").value), mode: at("mode").value, ...effort, ...filters() };
}

function remember() {
  const address = new URLSearchParams();
  if (at("query").value) address.set("q", at("query").value);
  for (const name of choices) {
    const usual = name === "index" ? indexes[0].name : defaults[name];
    if (at(name).value !== usual) address.set(name, at(name).value);
  }
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
  const { name, fields, error } = current();
  at("start").hidden = Boolean(error);
  const examples = error ? [] : await describe(name).then((index) => index.examples, () => []);
  if (at("index").value !== name || at("query").value.trim()) return;
  const about = fields.length ? [element("p", {}, `Filters can use: ${fields.join(", ")}.`)] : [];
  at("start").replaceChildren(...searchButtons("Recent", recent()), ...searchButtons("For example", examples), ...about);
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

function resultItem(query, result) {
  const id = String(result.id);
  const whole = result.text ?? "(stored without its text)";
  const text = element("p", { className: "text short" }, whole);
  let snippet = [whole];
  let spans = [];
  const map = element("button", { type: "button", ariaExpanded: "false" }, "Heat map");
  const more = element("button", { type: "button", ariaExpanded: "false" }, "Whole text");
  const place = element("div");
  const metadata = element("ul", { className: "metadata", ariaLabel: "Metadata" });
  for (const [field, value] of Object.entries(result.metadata ?? {})) {
    if (value === null || typeof value === "object") continue;
    const shown = `${field}: ${value}`;
    if (!canFilterBy(field, value)) {
      metadata.append(element("li", {}, element("span", {}, shown)));
      continue;
    }
    const button = element("button", { type: "button", title: "Filter by this value" }, shown);
    button.addEventListener("click", () => filterBy(field, value));
    metadata.append(element("li", {}, button));
  }
  map.addEventListener("click", async () => {
    const open = map.ariaExpanded === "true";
    map.ariaExpanded = String(!open);
    place.replaceChildren();
    if (open) return;
    try {
      const asked = { query, ids: [result.id], starts: [result.start], similarities: true };
      const [explanation] = await explain(at("index").value, asked);
      place.replaceChildren(heatMap(explanation));
    } catch (error) {
      place.replaceChildren(element("p", { className: "error" }, error.message));
    }
  });
  more.addEventListener("click", async () => {
    const open = !text.classList.toggle("short");
    more.ariaExpanded = String(open);
    if (!open) return text.replaceChildren(...snippet);
    text.replaceChildren(...highlighted(whole, spans));
    if (result.start === null) return;
    const stored = await read(at("index").value, id).catch(() => null);
    if (stored === null || !stored.text || text.classList.contains("short")) return;
    // A title stands before the passage; white space between passages may be stored as other white space.
    const characters = Array.from(whole);
    const title = characters.length - (result.end - result.start);
    const passage = characters.slice(title).join("");
    const place = stored.text.indexOf(passage);
    if (place < 0) return;
    const shift = Array.from(stored.text.slice(0, place)).length - title;
    const moved = spans
      .filter((span) => span.start >= title)
      .map((span) => ({ ...span, start: span.start + shift, end: span.end + shift }));
    text.replaceChildren(...highlighted(stored.text, moved));
    text.querySelector("mark")?.scrollIntoView({ block: "center" });
  });
  const score = element("span", { className: "score" }, `score ${result.score.toFixed(3)}`);
  const heading = element("h2", {}, id);
  if (result.start > 0) score.append(", from inside the document");
  const tools = element("div", { className: "tools" }, map, more);
  const item = element("li", { tabIndex: -1 }, heading, score, text, metadata, tools, place);
  item.mark = (explanation) => {
    if (explanation.text !== result.text) return;
    spans = explanation.spans;
    snippet = highlighted(whole, spans, explanation.snippet.start, explanation.snippet.end);
    text.replaceChildren(...(text.classList.contains("short") ? snippet : highlighted(whole, spans)));
  };
  return item;
}

async function highlight(query, results, items, signal) {
  const known = results.filter((result) => result.text !== null);
  if (!known.length) return;
  let explanations;
  try {
    const starts = known.map((result) => result.start);
    explanations = await explain(at("index").value, { query, ids: known.map((result) => result.id), starts }, signal);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return; // documents with pooled tokens, for instance, cannot be explained: the results stay without marks
  }
  explanations.forEach((explanation, i) => items[results.indexOf(known[i])].mark(explanation));
}

async function run() {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const query = at("query").value;
  if (!indexes.length) return; // start() searches when they are known
  remember();
  clearTimeout(settling);
  at("times").replaceChildren();
  at("offers").replaceChildren();
  at("start").hidden = at("why-not").hidden = at("timing").hidden = true;
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
    const answer = await search(at("index").value, { query, ...options() }, signal);
    const total = performance.now() - begin;
    clearTimeout(patience);
    const [results] = answer.results;
    const items = results.map((result) => resultItem(query, result));
    at("results").replaceChildren(...items);
    const count = results.length === 1 ? "1 document" : `${results.length} documents`;
    say(results.length ? `${count} in ${total.toFixed(0)} ms` : "No document found.");
    if (!results.length) at("offers").replaceChildren(...offers());
    settling = setTimeout(settle, SETTLED_MS, query, results.length > 0);
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

async function ask(event) {
  event.preventDefault();
  const answer = at("why-not-answer");
  answer.textContent = "Searching for the causes…";
  try {
    const report = await whyNot(at("index").value, { query: at("query").value, id: at("why-not-id").value, ...options() });
    answer.textContent = report.report;
  } catch (error) {
    answer.textContent = error.message;
  }
}

function describeIndex() {
  const index = current();
  if (!index) return;
  const size = index.error ?? `${index.documents.toLocaleString("en")} documents, ${index.kind}`;
  at("about").textContent = `${index.name}: ${size}${index.model ? `, ${index.model}` : ""}`;
  at("add-condition").disabled = !index.fields.length;
  at("effort").disabled = index.kind !== "IVF";
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
});
at("add-condition").addEventListener("click", () => condition().focus());
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
