// One document as an element of the results: title, place, the text that matched, its metadata, and what can be done.

import { explain, fileAddress, fileObject, hasToken, picture, read } from "./api.js";
import { canFilterBy, filterBy, openFolder } from "./filters.js";
import {
  drawn,
  element,
  heatMap,
  icon,
  isAddress,
  isCode,
  isDate,
  kindOf,
  marked,
  pageMap,
  passageAt,
  readable,
  titleLength,
} from "./render.js";
import { at, current } from "./state.js";
import { excerpt, formOf, wholeText } from "./text.js";

const LONGEST_SHORT = 600; // characters, of a document that no search has found
const THUMBNAIL = 240;
const SHEET = 1200; // pixels, of a page with a map
const MOST_CHIPS = 12;
const SIZES = ["image", "width", "height", "checksum"];
const COPIED_MS = 1500;

export const reading = () => (at("whole").checked ? { whole_query: true } : {});
export const isPicture = ({ metadata }) => Boolean(metadata?.checksum && metadata.width && metadata.height);

const fileName = (result) => (isPicture(result) && result.metadata.image ? String(result.metadata.image).split("/").pop() : undefined);

// Links lead to other hosts, which get no address of this page.
const link = (address, ...shown) => element("a", { href: address, rel: "noopener noreferrer", target: "_blank" }, ...shown);

function button(label, act, properties = {}) {
  const made = element("button", { type: "button", ...properties }, label);
  made.addEventListener("click", () => act(made));
  return made;
}

function chip(field, value, operator = "=") {
  if (isAddress(value)) return link(value, `${field}: ${readable(value)}`);
  const label = `${field}: ${readable(value)}`;
  if (!canFilterBy(field, value)) return element("span", {}, label);
  // Hardly two documents have the same second, so a point in time stands for its day.
  const day = isDate(value) && value.length > 10 ? [value.slice(0, 10), "contains"] : [value, operator];
  return button(label, () => filterBy(field, ...day), { title: `Filter by this value: ${value}` });
}

function chips(metadata, isTold) {
  const pairs = Object.entries(metadata).flatMap(([field, value]) => {
    if (value === null || isTold(field, value)) return [];
    if (!Array.isArray(value)) return typeof value === "object" ? [] : [[field, value]];
    return value.filter((each) => each !== null && typeof each !== "object").map((each) => [field, each, "has"]);
  });
  return pairs.slice(0, MOST_CHIPS).map((pair) => element("li", {}, chip(...pair)));
}

// Fields that say nothing, since all results have the same value.
export function sharedFields(results) {
  if (results.length < 2) return new Set();
  const [first, ...others] = results.map((result) => result.metadata ?? {});
  const text = (value) => JSON.stringify(value, (_, part) => (typeof part === "bigint" ? `${part}n` : part));
  return new Set(Object.keys(first).filter((field) => others.every((metadata) => text(metadata[field]) === text(first[field]))));
}

// The picture of a document, or of the page of its file, small, which is asked for when it comes into view.
function thumbnail(id, label, page) {
  const place = element("div", { className: "thumbnail" });
  const load = async ([entry], observer) => {
    if (!entry.isIntersecting) return;
    observer.disconnect();
    const shown = await picture(at("index").value, id, THUMBNAIL, page).then((bitmap) => drawn(bitmap, label), (error) => error.message);
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
  const previous = button("Previous match", () => step(current < 0 ? 0 : -1));
  const next = button("Next match", () => step(1));
  const bar = element("div", { className: "matches", hidden: true }, previous, next, count, button("Close", close));
  bar.begin = () => {
    current = -1;
    step(1);
  };
  return bar;
}

// The file of a document; a link sends no token, so with one the file is fetched and then shown.
function opener(id, page, label) {
  const place = page ? `#page=${page}` : "";
  if (!hasToken()) return link(fileAddress(at("index").value, id) + place, label);
  return button(label, async (made) => {
    try {
      link((await fileObject(at("index").value, id)) + place).click();
    } catch (error) {
      made.replaceWith(element("span", { className: "error" }, error.message));
    }
  });
}

// Pages of other hosts than this machine, without https, have no clipboard.
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = element("textarea", { value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

function copier(label, textOf) {
  return button(label, async (made) => {
    const isCopied = await copy(textOf()).then(() => true, () => false);
    made.textContent = isCopied ? "Copied" : "Not allowed by the browser";
    setTimeout(() => (made.textContent = label), COPIED_MS);
  });
}

// The address that shows this document, and what of it was found for the query.
function addressOf(result) {
  const address = new URL(location.href);
  for (const name of ["document", "part"]) address.searchParams.delete(name);
  address.searchParams.set("document", String(result.id));
  const part = [result.start, result.end, result.metadata?.page].filter((each) => each !== null && each !== undefined);
  if (result.start !== null) address.searchParams.set("part", part.join("-"));
  return address.href;
}

// How well a document matches: the mean similarity of the words, where the index knows it, else the share of the best
// score. The number of the score says little to people, so it is only told on request.
function strength({ score, mean_score: mean }, best) {
  const share = Math.max(0, Math.min(1, mean ?? (best > 0 ? score / best : 0)));
  const number = score.toFixed(3);
  const bar = element("span", { className: "bar", role: "img", title: `score ${number}`, ariaLabel: `score ${number}` }, element("span"));
  bar.firstChild.style.width = `${Math.round(100 * share)}%`;
  return bar;
}

// The folders of a file, each a way into it, and its name.
function breadcrumb(path) {
  const parts = path.split("/");
  const name = parts.pop();
  const crumbs = parts.flatMap((part, i) => {
    const folder = `${parts.slice(0, i + 1).join("/")}/`;
    const isOpen = canFilterBy("path", folder);
    const crumb = isOpen ? button(part, () => openFolder(folder), { title: `Filter by the folder ${folder}` }) : part;
    return [crumb, " › "];
  });
  return element("span", { className: "crumbs" }, ...crumbs, name);
}

const sender = (value) => String(value).replace(/\s*<[^>]*>\s*$/, "").replaceAll('"', "") || String(value);

// What it is and where: of a mail sender and date, of a file its folders, and in it page, time, headings or line.
function whereOf(id, name, metadata, place) {
  const path = typeof metadata.path === "string" ? metadata.path : "";
  const isMail = kindOf(path, metadata) === "mail" && Boolean(metadata.from);
  const file = path ? breadcrumb(path) : element("span", {}, name === id ? "" : id);
  const parts = isMail ? [element("span", {}, sender(metadata.from)), element("span", {}, readable(metadata.date ?? ""))] : [];
  const position = element("span", { className: "position" }, place);
  return { isMail, line: element("p", { className: "where" }, ...parts, file, position) };
}

// `query`: what maps are for, empty where nothing was searched for; `best`: the highest score beside it.
export function resultItem(query, result, { shared = new Set(), best = result.score } = {}) {
  const id = String(result.id);
  const metadata = result.metadata ?? {};
  const whole = Array.from(result.text ?? "(stored without its text)");
  const found = result.excerpt;
  const begin = found?.begin ?? titleLength(result);
  const [lead] = found ? [""] : whole.slice(0, begin).join("").trim().split("\n");
  const name = String(found?.title || lead || metadata.title || (fileName(result) ?? id));
  const place = found?.place || (metadata.page ? `page ${metadata.page}` : "");
  const marks = found?.marks ?? [];
  const file = String(metadata.path ?? (isCode(id) ? id : ""));
  const form = formOf(file);
  const text = element("div", { className: form === "code" ? "text code short" : "text short" });
  const isPage = isPicture(result);
  const shownBelow = element("div");
  const { linkPrefix } = document.documentElement.dataset;
  const stored = linkPrefix && metadata.path && linkPrefix + String(metadata.path).split("/").map(encodeURIComponent).join("/");
  const address = ["url", "link", "source"].map((field) => metadata[field]).find(isAddress) ?? stored;
  const { serves_files: servesFiles, serves_pages: servesPages } = current();
  const hasFile = servesFiles && typeof metadata.path === "string";
  const hasSheet = servesPages && metadata.page && !isPage && /\.pdf$/i.test(file);
  // The title opens the document: its page, its file, or else all of its text here.
  const nameNodes = begin && whole.slice(0, begin).join("").startsWith(name) ? marked(whole, marks, 0, Array.from(name).length) : [name];
  const title = element("span", {}, ...nameNodes);
  const opened = address ? link(address, title) : hasFile ? opener(id, metadata.page, title) : element("a", { href: addressOf(result) }, title);
  const { isMail, line: where } = whereOf(id, name, metadata, place);
  const isTold = (field, value) =>
    ["page", "time", "path", "title"].includes(field) ||
    shared.has(field) ||
    (isPage && SIZES.includes(field)) ||
    (isMail && ["from", "date"].includes(field)) ||
    [id, name].includes(value);
  const short = () => {
    const part = found ?? { start: begin, end: Math.min(whole.length, begin + LONGEST_SHORT) };
    text.replaceChildren(...excerpt(whole, marks, form, begin, { start: part.start, end: part.end, title: name }));
  };
  const long = () => text.replaceChildren(...wholeText(whole, marks, form, begin));
  // Shows something below the text, or hides it.
  const toggle = (label, make) =>
    button(
      label,
      async (made) => {
        const open = made.ariaExpanded === "true";
        for (const each of tools.querySelectorAll("[aria-expanded]")) if (each !== more) each.ariaExpanded = "false";
        made.ariaExpanded = String(!open);
        shownBelow.replaceChildren(...(open ? [] : [element("p", {}, "Loading …")]));
        if (open) return;
        try {
          shownBelow.replaceChildren(await make());
        } catch (error) {
          shownBelow.replaceChildren(element("p", { className: "error" }, error.message));
        }
      },
      { ariaExpanded: "false" },
    );
  const map = toggle(isPage ? "Which part of the page?" : "Heat map", async () => {
    if (isPage) return showPage(query, result, `Picture of ${name}`);
    const asked = { query, ids: [result.id], starts: [result.start], similarities: true, ...reading() };
    const [explanation] = await explain(at("index").value, asked);
    return heatMap(explanation);
  });
  const sheet = toggle("Page as picture", async () => {
    const bitmap = await picture(at("index").value, id, SHEET, metadata.page);
    return element("div", { className: "sheet" }, drawn(bitmap, `Page ${metadata.page} of ${name}`));
  });
  const more = button("Whole text", async () => {
    const open = !text.classList.toggle("short");
    more.ariaExpanded = String(open);
    matches.hidden = !open || !query;
    text.style.height = "";
    if (!open) return short();
    long();
    if (result.start === null) return matches.begin();
    const document = await read(at("index").value, id).catch(() => null);
    const shift = document?.text ? passageAt(document.text, whole, begin) : -1;
    if (text.classList.contains("short")) return;
    if (shift >= 0) {
      const moved = marks
        .filter((mark) => mark.start >= begin)
        .map((mark) => ({ ...mark, start: mark.start + shift - begin, end: mark.end + shift - begin }));
      text.replaceChildren(...wholeText(Array.from(document.text), moved, form));
    }
    matches.begin();
  }, { ariaExpanded: "false" });
  const matches = matchBar(text, () => {
    more.click();
    item.focus();
  });
  const passage = () => {
    const cited = [name, file && file !== name ? file : "", place].filter(Boolean).join(", ");
    return `${whole.slice(begin).join("").trim()}\n(${cited})`;
  };
  const tools = element("div", { className: "tools" });
  if (hasFile) tools.append(opener(id, metadata.page, "Open"));
  tools.append(copier("Copy link", () => addressOf(result)));
  if (result.text) tools.append(copier("Copy passage", passage));
  if (hasSheet) tools.append(sheet);
  if (query) tools.append(map);
  if (!isPage || result.text) tools.append(more);
  const bar = result.score === undefined ? [] : [strength(result, best)];
  const head = element("div", { className: "head" }, icon(kindOf(file || String(fileName(result) ?? ""), metadata)), element("h2", {}, opened), ...bar);
  const values = element("ul", { className: "metadata", ariaLabel: "Metadata" }, ...chips(metadata, isTold));
  const item = element("li", { tabIndex: -1 }, head, where, matches, text, element("div", { className: "foot" }, values, tools), shownBelow);
  short();
  if (isPage || hasSheet) {
    item.prepend(isPage ? thumbnail(result.id, `Picture of ${name}`) : thumbnail(result.id, `Page ${metadata.page}`, metadata.page));
    item.classList.add("picture");
  }
  if (result.weak) item.classList.add("weak");
  item.open = () => more.click();
  return item;
}

// One document that cannot be shown says so, and hides no other one.
export function itemOf(query, result, beside) {
  try {
    return resultItem(query, result, beside);
  } catch (error) {
    const why = element("p", { className: "error" }, `This document cannot be shown: ${error.message}`);
    const head = element("div", { className: "head" }, element("h2", {}, String(result.id)));
    return Object.assign(element("li", { tabIndex: -1 }, head, why), { open() {} });
  }
}
