// The page: its state is in its form and in the address, so a link to a search can be shared.

import { RequestError, explain, hasToken, listIndexes, search, setToken } from "./api.js";
import { conditions, filters, forgetCounts, restoreConditions, setConditions, showColumn } from "./filters.js";
import { element, stageTimes } from "./render.js";
import { itemOf, reading, sharedFields } from "./result.js";
import { invite, remember as rememberQuery, showDocument } from "./start.js";
import { at, current, searchNow, server } from "./state.js";
import { answerWhyNot } from "./why_not.js";

const DEBOUNCE_MS = 150;
const PATIENCE_MS = 300; // then the page says that it searches
const SETTLED_MS = 1000; // after such a pause a search is an entry of the history, and one of the recent ones
const MOST_RESULTS = 1000; // as the server returns at once
const choices = ["index", "mode", "effort", "k"];
const defaults = { mode: "", effort: "balanced", k: "10" };

let running = new AbortController();
let timer = 0;
let settling = 0;
let isSettled = false;
let wanted = 0; // results

function options() {
  const { kind } = current();
  const effort = kind === "IVF" ? { effort: at("effort").value } : {};
  return { k: Number(at("k").value), mode: at("mode").value || null, ...effort, ...reading(), ...filters() };
}

function remember() {
  const address = new URLSearchParams();
  if (at("query").value) address.set("q", at("query").value);
  for (const name of choices) {
    const usual = name === "index" ? server.indexes[0].name : defaults[name];
    if (at(name).value !== usual) address.set(name, at(name).value);
  }
  if (at("whole").checked) address.set("whole", "true");
  for (const triple of conditions()) address.append("filter", JSON.stringify(triple));
  for (const name of ["document", "part"]) if (at(name).value) address.set(name, at(name).value);
  const query = address.toString();
  document.title = at("query").value ? `${at("query").value} - Latelier` : "Latelier";
  const wanted = query ? `?${query}` : location.pathname;
  if (wanted === (location.search || location.pathname)) return;
  history[isSettled ? "pushState" : "replaceState"](null, "", wanted);
  isSettled = false;
}

// Called when nothing has been typed for a while after an answer.
function settle(query, found) {
  isSettled = true;
  if (found) rememberQuery(query);
}

// Searches that may find more than one that found nothing.
function offers() {
  const list = [];
  const offer = (text, change) => {
    const button = element("button", { type: "button" }, text);
    button.addEventListener("click", () => {
      change();
      searchNow();
    });
    list.push(element("li", {}, button));
  };
  const isOne = at("document").value !== "";
  if (isOne && at("query").value.trim()) offer("All results", closeDocument);
  else if (isOne) offer("Back", closeDocument);
  else if (conditions().length) offer("Search without the filters", () => setConditions([]));
  const isOfWords = ["keywords", "rerank"].includes(at("mode").value); // the others find what is near in meaning, too
  if (!isOne && isOfWords) offer("Search by meaning", () => (at("mode").value = "vectors"));
  return list;
}

function closeDocument() {
  at("document").value = at("part").value = "";
}

// Takes over the address and returns what of it this server does not know.
function restore() {
  const address = new URLSearchParams(location.search);
  const unknown = [];
  at("query").value ||= address.get("q") ?? ""; // what has been typed meanwhile stays
  at("whole").checked = address.has("whole");
  for (const name of ["document", "part"]) at(name).value = address.get(name) ?? "";
  for (const [name, usual] of Object.entries(defaults)) if (!address.has(name)) at(name).value = usual;
  for (const name of choices.filter((name) => address.has(name))) {
    const control = at(name);
    const wanted = address.get(name);
    if ([...control.options].some((option) => option.value === wanted)) control.value = wanted;
    else unknown.push(`${name} ${wanted}`);
  }
  // The filters of an unknown index are not those of another one.
  const fields = (address.get("index") ?? current()?.name) === current()?.name ? current()?.fields ?? [] : [];
  return [...unknown, ...restoreConditions(address.getAll("filter"), fields)];
}

function say(message, isError = false) {
  at("status").textContent = message;
  at("status").classList.toggle("error", isError);
}

// The page of a server that wants a token, or another one than was given.
function lock() {
  at("token-problem").textContent = hasToken()
    ? "The server does not accept this token. Compare it with the one that you were given, or ask whoever runs the server."
    : "";
  at("locked").hidden = false;
  at("form").hidden = at("layout").hidden = true;
  at("token").value = "";
  at("token").focus();
}

function fail(error) {
  if (error.name === "AbortError") return;
  if (error instanceof RequestError && error.status === 401) lock();
  else say(error.message, true);
}

// Results that match less than what usually answers a question are folded; returns what is said of all of them.
function foldWeak(found, isMore) {
  const weak = found.filter((result) => result.weak).length;
  const strong = found.length - weak;
  at("weak").hidden = !weak;
  if (!isMore) at("results").classList.add("folded");
  at("weak").ariaExpanded = String(!at("results").classList.contains("folded"));
  at("weak").textContent = weak === 1 ? "Show it" : `Show the ${weak}`;
  if (!weak) return found.length === 1 ? "1 document" : `${found.length} documents`;
  if (!strong) return "Nothing matches well; the nearest";
  return `${strong} ${strong === 1 ? "answers" : "answer"}, ${weak} ${weak === 1 ? "matches" : "match"} weakly`;
}

function showResults(query, found, isMore) {
  const present = isMore ? at("results").children.length : 0;
  const beside = { shared: sharedFields(found), best: Math.max(...found.map((result) => result.score)) };
  const items = found.slice(present).map((result) => itemOf(query, result, beside));
  if (isMore) at("results").append(...items);
  else at("results").replaceChildren(...items);
  if (isMore) items[0]?.focus();
}

function begin() {
  at("times").replaceChildren();
  at("offers").replaceChildren();
  at("start").hidden = at("why-not").hidden = at("timing").hidden = at("more").hidden = at("weak").hidden = true;
}

async function runDocument(signal) {
  const query = at("query").value.trim();
  const explainOne = async (id, start) => {
    const [explanation] = await explain(at("index").value, { query, ids: [id], starts: [start], ...reading() }, signal);
    return explanation;
  };
  say("Reading the document …");
  try {
    await showDocument(signal, explainOne);
    say("1 document");
  } catch (error) {
    at("results").replaceChildren();
    fail(error);
  }
  at("offers").replaceChildren(...offers());
}

// Searches; with `isMore`, for as many results again, which are put after those that are shown.
async function run(isMore = false) {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const query = at("query").value;
  if (!server.indexes.length) return; // start() searches when they are known
  remember();
  clearTimeout(settling);
  wanted = Number(at("k").value) + (isMore ? wanted : 0);
  begin();
  showColumn();
  if (at("document").value) return runDocument(signal);
  if (!query.trim()) {
    at("results").replaceChildren();
    say("");
    return invite();
  }
  at("why-not").hidden = at("timing").hidden = false;
  at("results").ariaBusy = "true";
  const patience = setTimeout(() => say("Searching …"), PATIENCE_MS);
  try {
    const begun = performance.now();
    const include = ["text", "metadata", "excerpt"];
    const answer = await search(at("index").value, { query, include, ...options(), k: wanted }, signal);
    const total = performance.now() - begun;
    clearTimeout(patience);
    const [found] = answer.results;
    showResults(query, found, isMore);
    at("more").hidden = found.length < wanted || wanted >= MOST_RESULTS;
    const [unread] = answer.unread;
    const cut = unread ? ` The query is too long: its last ${unread} tokens were not read.` : "";
    const isReadable = unread && current().query_length + unread <= current().longest_query;
    at("whole-label").hidden = !isReadable && !at("whole").checked;
    const told = `${foldWeak(found, isMore)} in ${total.toFixed(0)} ms`;
    say((found.length ? told : "No document found.") + (cut && `.${cut}`));
    if (!found.length) at("offers").replaceChildren(...offers());
    settling = setTimeout(settle, SETTLED_MS, query, found.length > 0);
    const network = Math.max(0, total - (answer.milliseconds.total ?? total));
    at("times").replaceChildren(...stageTimes({ ...answer.milliseconds, network }));
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

function describeIndex() {
  const index = current();
  if (!index) return;
  const size = index.documents === 1 ? "1 document" : `${index.documents?.toLocaleString("en")} documents`;
  at("about").textContent = `${index.name}: ${index.error ?? size}`;
  at("usual-mode").textContent = index.has_words ? "usual: meaning and words" : "usual: meaning";
  at("effort").parentElement.hidden = index.kind !== "IVF";
}

async function start() {
  say("Waiting for the server …");
  try {
    server.indexes = await listIndexes();
  } catch (error) {
    fail(error);
    return;
  }
  say("");
  const wasLocked = !at("locked").hidden;
  at("locked").hidden = true;
  at("form").hidden = at("layout").hidden = false;
  at("index").replaceChildren(...server.indexes.map((index) => element("option", {}, index.name)));
  at("index-label").hidden = server.indexes.length < 2;
  if (wasLocked) at("query").focus();
  const unknown = restore();
  describeIndex();
  if (!unknown.length) return run();
  clearTimeout(timer);
  showColumn();
  const names = unknown.join(", ");
  say(`Not searched, because the address names what is unknown here: ${names}. Press Search to leave it out.`, true);
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(timer);
  isSettled = true;
  run();
});
at("form").addEventListener("input", () => {
  closeDocument();
  schedule();
});
at("index").addEventListener("change", () => {
  setConditions([]);
  closeDocument();
  forgetCounts();
  describeIndex();
});
at("more").addEventListener("click", () => run(true));
at("weak").addEventListener("click", () => {
  const isFolded = at("results").classList.toggle("folded");
  at("weak").ariaExpanded = String(!isFolded);
});
at("whole").addEventListener("change", () => run());
at("locked").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken(at("token").value);
  start();
});
answerWhyNot(() => ({ ...options(), k: wanted }));

const isShown = (item) => item.offsetParent !== null;

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    at("query").focus();
  } else if (event.key === "Escape" && (!typing || event.target === at("query")) && !event.target.closest("[popover]")) {
    at("query").value = "";
    closeDocument();
    at("query").focus();
    run();
  } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && (!typing || event.target === at("query"))) {
    const items = [...at("results").children].filter(isShown);
    const next = items.indexOf(event.target.closest("#results > li")) + (event.key === "ArrowDown" ? 1 : -1);
    if (!items.length || next >= items.length || next < -1) return;
    event.preventDefault();
    (items[next] ?? at("query")).focus();
  } else if (event.key === "Enter" && event.target.matches("#results > li")) {
    event.target.open?.();
  }
});
addEventListener("popstate", () => {
  if (!server.indexes.length) return;
  at("query").value = "";
  at("index").value = new URLSearchParams(location.search).get("index") ?? server.indexes[0].name;
  restore();
  describeIndex();
  run();
});
start();
