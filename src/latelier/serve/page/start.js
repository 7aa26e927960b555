// Where nothing is searched for: what the index is, newest documents, folders to browse, questions; and the documents of
// a folder or of other filters.

import { describe, read } from "./api.js";
import { conditions, folderOf, listed, openFolder } from "./filters.js";
import { element, icon, kindOf, readable, readableSize } from "./render.js";
import { itemOf } from "./result.js";
import { at, current, searchNow } from "./state.js";

const MOST_RECENT = 5;

const recentKey = () => `recent ${at("index").value}`;
const recent = () => JSON.parse(localStorage.getItem(recentKey()) ?? "[]");

export function remember(query) {
  const kept = [query, ...recent().filter((each) => each !== query)].slice(0, MOST_RECENT);
  localStorage.setItem(recentKey(), JSON.stringify(kept));
}

const section = (title, ...content) => element("section", {}, element("h2", {}, title), ...content);

function buttons(entries, act, className = "") {
  const list = element("ul", { className });
  for (const [label, value] of entries) {
    const button = element("button", { type: "button" }, ...(Array.isArray(label) ? label : [label]));
    button.addEventListener("click", () => act(value));
    list.append(element("li", {}, button));
  }
  return list;
}

function ask(query) {
  at("query").value = query;
  searchNow();
}

function show(id) {
  at("document").value = String(id);
  at("part").value = "";
  searchNow();
}

const count = (documents) => (documents === 1 ? "1 document" : `${documents.toLocaleString("en")} documents`);

function introduction({ name, documents }, { folders, types }) {
  const files = types.length ? ` in ${types.length === 1 ? "files" : `${types.length} kinds of files`}` : "";
  const from = folders.length > 1 ? `, from ${folders.length} folders` : "";
  const text = `${name} holds ${count(documents)}${files}${from}. Ask in your own words: what is found need not use the same ones.`;
  return element("p", { className: "introduction" }, text);
}

function about({ documents, bytes, modified, fields, model, kind }) {
  const facts = {
    Documents: documents.toLocaleString("en"),
    Size: bytes ? readableSize(bytes) : "",
    "Last change": modified ? readable(modified) : "",
    Fields: fields.join(", "),
    Model: model ?? "",
    Index: kind,
  };
  const rows = Object.entries(facts).filter(([, value]) => value);
  const list = element("dl", {}, ...rows.flatMap(([fact, value]) => [element("dt", {}, fact), element("dd", {}, value)]));
  return element("details", {}, element("summary", {}, "About this index"), list);
}

const folderButtons = (folders, above = "") =>
  buttons(
    folders.map(({ value, documents }) => [
      [icon("folder"), ` ${value.slice(above.length, -1)} `, element("small", {}, documents.toLocaleString("en"))],
      value,
    ]),
    openFolder,
    "tiles",
  );

function invitation(index, present) {
  const { newest, examples } = index;
  const parts = [introduction(index, present)];
  if (examples.length) parts.push(section("Ask, for example", buttons(examples.map((each) => [each, each]), ask)));
  if (recent().length) parts.push(section("Asked recently", buttons(recent().map((each) => [each, each]), ask)));
  if (present.folders.length > 1) parts.push(section("Folders", folderButtons(present.folders)));
  if (newest.length) {
    const entries = newest.map(({ id, title, modified }) => [
      [icon(kindOf(String(id))), ` ${title} `, element("small", {}, modified ? readable(modified) : "")],
      id,
    ]);
    parts.push(section(newest[0].modified ? "Changed last" : "Added last", buttons(entries, show, "list")));
  }
  return [...parts, about(index)];
}

// The files that the filters leave.
function listing({ files, folders }) {
  const folder = folderOf();
  const inside = files.filter(({ value }) => !folder || !value.slice(folder.length).includes("/"));
  const open = ({ value, documents }) => (documents === 1 ? show(value) : openFile(value));
  const entries = inside.map((file) => [
    [icon(kindOf(file.value)), ` ${file.value.slice(folder.length)} `, element("small", {}, file.documents > 1 ? count(file.documents) : "")],
    file,
  ]);
  const parts = [];
  if (folder && folders.length) parts.push(section("Folders", folderButtons(folders, folder)));
  if (entries.length) parts.push(section(folder ? `Files in ${folder}` : "Files", buttons(entries, open, "list")));
  if (!parts.length) parts.push(element("p", {}, "No file is left by these filters."));
  return [...parts, element("p", {}, "Searches look only at what these filters leave.")];
}

// A file of several documents, such as a mailbox, is searched.
function openFile(path) {
  openFolder(path);
  at("query").focus();
}

export async function invite() {
  const { name, error } = current();
  at("start").hidden = Boolean(error);
  if (error) return;
  if (!at("start").children.length) at("start").replaceChildren(element("p", {}, `Reading what ${name} holds …`));
  const chosen = conditions();
  const isStill = () => at("index").value === name && !at("query").value.trim() && !at("document").value && conditions() === chosen;
  const answers = [listed(name), chosen.length ? null : describe(name)];
  let present;
  let about;
  try {
    [present, about] = await Promise.all(answers);
  } catch (problem) {
    if (isStill()) at("start").replaceChildren(element("p", { className: "error" }, problem.message));
    return;
  }
  if (!isStill()) return;
  at("start").replaceChildren(...(about ? invitation(about, present) : listing(present)));
}

// One document alone, as links lead to it; with a query, the part of it that was found.
export async function showDocument(signal, explained) {
  const index = at("index").value;
  const id = at("document").value;
  const query = at("query").value.trim();
  const [start, end, page] = at("part").value.split("-").map(Number);
  const hasPart = query !== "" && Number.isSafeInteger(start) && end > start;
  const stored = await read(index, id, signal);
  const whole = { id: stored.id, text: stored.text, metadata: stored.metadata, start: null, end: null };
  if (page) whole.metadata = { ...whole.metadata, page };
  const explanation = query ? await explained(stored.id, hasPart ? start : null).catch(() => null) : null;
  const part = hasPart ? { start, end } : {};
  const result = explanation?.excerpt ? { ...whole, text: explanation.text, excerpt: explanation.excerpt, ...part } : whole;
  const item = itemOf(query, result);
  at("results").replaceChildren(item);
  item.open();
}
