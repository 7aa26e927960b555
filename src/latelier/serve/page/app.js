// The page: its state is in its form and in the address, so a link to a search can be shared.

import { RequestError, explain, keepsIntegers, listIndexes, search, setToken, whyNot } from "./api.js";
import { element, heatMap, highlighted, stageTimes } from "./render.js";

const DEBOUNCE_MS = 150;
const OPERATORS = ["=", "!=", "<", "<=", ">", ">=", "contains"];
const at = (id) => document.getElementById(id);
const choices = ["index", "mode", "effort", "k"];
const defaults = { mode: "vectors", effort: "balanced", k: "10" };

let indexes = [];
let running = new AbortController();
let timer = 0;

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
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
}

// Takes over the address and returns what of it this server does not know.
function restore() {
  const address = new URLSearchParams(location.search);
  const unknown = [];
  at("query").value ||= address.get("q") ?? ""; // what has been typed meanwhile stays
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
  const text = element("p", { className: "text short" }, result.text ?? "(stored without its text)");
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
      const [explanation] = await explain(at("index").value, { query, ids: [result.id], similarities: true });
      place.replaceChildren(heatMap(explanation));
    } catch (error) {
      place.replaceChildren(element("p", { className: "error" }, error.message));
    }
  });
  more.addEventListener("click", () => {
    more.ariaExpanded = String(!text.classList.toggle("short"));
  });
  const score = element("span", { className: "score" }, `score ${result.score.toFixed(3)}`);
  const heading = element("h2", {}, id);
  if (result.start !== null) score.append(`, characters ${result.start} to ${result.end}`);
  const tools = element("div", { className: "tools" }, map, more);
  const item = element("li", {}, heading, score, text, metadata, tools, place);
  item.mark = (explanation) => {
    // The search and the explanation may differ in which passage of a document is its best.
    if (explanation.text === result.text) text.replaceChildren(...highlighted(result.text, explanation.spans));
  };
  return item;
}

async function highlight(query, results, items, signal) {
  const known = results.filter((result) => result.text !== null);
  if (!known.length) return;
  let explanations;
  try {
    explanations = await explain(at("index").value, { query, ids: known.map((result) => result.id) }, signal);
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
  at("times").replaceChildren();
  if (!query.trim()) {
    at("results").replaceChildren();
    say("");
    return;
  }
  at("results").ariaBusy = "true";
  try {
    const begin = performance.now();
    const answer = await search(at("index").value, { query, ...options() }, signal);
    const total = performance.now() - begin;
    const [results] = answer.results;
    const items = results.map((result) => resultItem(query, result));
    at("results").replaceChildren(...items);
    const count = results.length === 1 ? "1 document" : `${results.length} documents`;
    say(results.length ? `${count} in ${total.toFixed(0)} ms` : "No document found.");
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
  }
});
start();
