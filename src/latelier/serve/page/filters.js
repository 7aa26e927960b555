// Filters: the conditions that are chosen, shown as tags, and the column of values to choose from.

import { browse, describeFields, keepsIntegers } from "./api.js";
import { dayOf, element, isDate, readable } from "./render.js";
import { at, current, searchSoon } from "./state.js";

const OPERATORS = ["=", "!=", "<", "<=", ">", ">=", "contains", "begins with", "ends with", "has"];
const TYPED = OPERATORS.slice(0, 7); // those of the form for another condition
const SHOWN = 8; // values of a field, before "more" is pressed
const WORDS = { "=": "", has: "", "!=": "not ", "<=": "up to ", ">=": "from ", "<": "below ", ">": "above " };

let held = []; // [field, operator, value as it is typed]
let whole = null; // what all documents of the index have, and of which index: { name, answer }
const opened = new Set(); // fields of which all values are shown

export const conditions = () => held;

const isSame = (one, other) => one.every((part, i) => part === other[i]);
const isHeld = (wanted) => held.some((present) => isSame(present, wanted));

export function setConditions(wanted) {
  held = wanted;
  showTags();
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
export function canFilterBy(field, value) {
  const isRounded = !keepsIntegers && Number.isInteger(value) && !Number.isSafeInteger(value);
  return current().fields.includes(field) && !/[\r\n]/.test(value) && !isRounded;
}

function expression([field, operator, typed]) {
  const name = `"${field.replaceAll('"', '""')}"`;
  const value = parameter(typed);
  const text = String(value);
  if (operator === "contains") return [`instr(${name}, ?) > 0`, text];
  if (operator === "begins with") return [`instr(${name}, ?) = 1`, text];
  if (operator === "ends with") return [`${name} LIKE ? ESCAPE '^'`, `%${text.replace(/[%_^]/g, "^$&")}`];
  if (operator !== "has") return [`${name} ${operator} ?`, value];
  // A value of its own, or an element of a list.
  const element = `EXISTS (SELECT 1 FROM json_each(${name}) WHERE value = ?)`;
  return [`(${name} = ? OR CASE WHEN json_valid(${name}) THEN ${element} ELSE FALSE END)`, value, value];
}

function asFilter(chosen) {
  if (!chosen.length) return {};
  const parts = chosen.map(expression);
  return { filter: parts.map(([sql]) => sql), parameters: parts.flatMap(([, ...values]) => values) };
}

export const filters = () => asFilter(held);

// Takes over the conditions of an address, each as JSON, and returns those that this index cannot hold.
export function restoreConditions(texts, fields) {
  const unknown = [];
  const known = [];
  for (const text of texts) {
    let field, operator, value;
    try {
      [field, operator, value] = JSON.parse(text);
    } catch {
      // A damaged link: it has no field, so it is unknown.
    }
    if (fields.includes(field) && OPERATORS.includes(operator)) known.push([field, operator, String(value)]);
    else unknown.push(`filter ${text}`);
  }
  setConditions(known);
  return unknown;
}

function change(wanted) {
  setConditions(wanted);
  searchSoon();
}

const without = (...parts) => held.filter((present) => !isSame(parts, present));

export function filterBy(field, value, operator = "=") {
  const wanted = [field, operator, spelled(value)];
  if (isHeld(wanted)) return;
  change([...held, wanted]);
  at("conditions").lastElementChild.firstElementChild.focus();
}

// Within a folder; in another one before.
export const openFolder = (folder) => change([...without("path", "begins with"), ["path", "begins with", spelled(folder)]]);

export const folderOf = () => {
  const found = held.find(([field, operator]) => field === "path" && operator === "begins with");
  return found ? String(parameter(found[2])) : "";
};

function label([field, operator, typed]) {
  const value = parameter(typed);
  if (field === "path" && operator === "begins with") return `in ${value}`;
  if (field === "path" && operator === "ends with") return `kind: ${String(value).replace(".", "").toUpperCase()}`;
  const day = String(value).replace(/T24$/, "");
  const shown = isDate(day) ? readable(day) : readable(value);
  if (operator === "contains" && isDate(day)) return `${field}: ${shown}`;
  return `${field}: ${WORDS[operator] ?? `${operator} `}${shown}`;
}

function showTags() {
  const tags = held.map((each) => {
    const text = label(each);
    const tag = element("button", { type: "button", ariaLabel: `Remove the filter ${text}` }, `${text} `, element("span", { ariaHidden: "true" }, "×"));
    tag.addEventListener("click", () => {
      change(without(...each));
      (at("conditions").querySelector("button") ?? at("query")).focus();
    });
    return element("li", {}, tag);
  });
  at("conditions").replaceChildren(...tags);
  at("open-filters").textContent = held.length ? `Filters (${held.length})` : "Filters";
}

// The column.

// No button for a value that no document has now.
function valueButton(text, documents, wanted, choose) {
  const count = element("small", {}, documents.toLocaleString("en"));
  const isPressed = isHeld(wanted);
  if (!documents && !isPressed) return [];
  const button = element("button", { type: "button", ariaPressed: String(isPressed) }, element("span", {}, text), " ", count);
  button.addEventListener("click", () => {
    if (isPressed) change(without(...wanted));
    else choose();
  });
  return [button];
}

function group(name, ...content) {
  return element("fieldset", {}, element("legend", {}, name), ...content);
}

// Buttons, of which the first are shown; the others once "more" is pressed.
function someOf(name, buttons) {
  if (buttons.length <= SHOWN + 1 || opened.has(name)) return buttons;
  const shown = buttons.filter((button, i) => i < SHOWN || button.ariaPressed === "true");
  const more = element("button", { type: "button", className: "quiet" }, `${buttons.length - shown.length} more`);
  more.addEventListener("click", () => {
    opened.add(name);
    more.replaceWith(...buttons.filter((button) => !shown.includes(button)));
  });
  return [...shown, more];
}

// A limit of numbers or of days, which are written as they are shown everywhere.
function limit(field, operator, areDays, end) {
  const side = operator === ">=" ? "from" : "to";
  const present = held.find((each) => each[0] === field && each[1] === operator)?.[2] ?? "";
  const value = present.replace(/T24$/, "");
  const type = areDays ? "text" : "number";
  const shown = areDays && value ? readable(value) : value;
  const input = element("input", { type, value: shown, placeholder: readable(end), ariaLabel: `${field} ${side}`, autocomplete: "off" });
  if (!areDays) input.step = "any";
  input.addEventListener("change", () => {
    const typed = input.value.trim();
    const wanted = areDays && typed ? dayOf(typed) : typed;
    input.setCustomValidity(typed && !wanted ? `Write a day, such as ${readable(end)}.` : "");
    if (!input.reportValidity()) return;
    const others = without(field, operator);
    // Points in time of a day begin with its date.
    const isLast = areDays && operator === "<=" && end.length > 10;
    change(wanted ? [...others, [field, operator, isLast ? `${wanted}T24` : wanted]] : others);
  });
  return element("label", {}, `${side} `, input);
}

const same = (one, other) => typeof one === typeof other && String(one) === String(other);

// The values of a field, if they tell documents apart: of few values each, of many those of several documents, of
// numbers and dates of which each document has another one the limits.
function facet(all, now) {
  const { field, values, is_complete: isComplete, least, greatest, has_lists: hasLists } = all;
  const operator = hasLists ? "has" : "=";
  const isRange = typeof least === "number" || (isDate(least) && isDate(greatest));
  const isRepeated = values?.some((each) => each.documents > 1);
  if (!values || (isComplete && values.length < 2) || (!isRange && !isRepeated)) return [];
  if (isRange && (isDate(least) || !isComplete || !isRepeated)) {
    const isChosen = held.some((each) => each[0] === field);
    if (least === greatest || (now && now.least === null && !isChosen)) return [];
    const areDays = isDate(least);
    return [group(field, element("div", { className: "limits" }, limit(field, ">=", areDays, least), limit(field, "<=", areDays, greatest)))];
  }
  const shown = isComplete ? values : (now?.values ?? values).filter((each) => each.documents > 1);
  const buttons = shown.flatMap(({ value }) => {
    const { documents = 0 } = now?.values.find((each) => same(each.value, value)) ?? {};
    const wanted = [field, operator, spelled(value)];
    return valueButton(readable(value), documents, wanted, () => change([...without(field, operator), wanted]));
  });
  const others = isComplete ? [] : [element("small", {}, "and others: see below")];
  return buttons.length ? [group(field, ...someOf(field, buttons), ...others)] : [];
}

function kinds(all, now) {
  if (all.types.length < 2) return [];
  const buttons = all.types.flatMap(({ value }) => {
    const { documents = 0 } = now.types.find((each) => each.value === value) ?? {};
    const wanted = ["path", "ends with", `.${value}`];
    return valueButton(value.toUpperCase(), documents, wanted, () => change([...without("path", "ends with"), wanted]));
  });
  return [group("Kind", ...someOf("Kind", buttons))];
}

function folders(all, now) {
  const folder = folderOf();
  if (!all.folders.length && !folder) return [];
  const above = folder.split("/").slice(0, -2);
  const up = element("button", { type: "button", ariaPressed: "true" }, element("span", {}, folder), " ", element("small", {}, "up"));
  up.addEventListener("click", () => (above.length ? openFolder(`${above.join("/")}/`) : change(without("path", "begins with"))));
  const buttons = now.folders.flatMap(({ value, documents }) =>
    valueButton(value.slice(folder.length), documents, ["path", "begins with", value], () => openFolder(value)),
  );
  return [group("Folder", ...(folder ? [up] : []), ...someOf(`folder ${folder}`, buttons))];
}

// What documents have that the other conditions leave: a condition does not count for its own field.
async function counts(name) {
  const ask = (chosen, more = {}) => browse(name, { ...asFilter(chosen), folder: folderOf(), ...more });
  const everything = ask(held);
  const own = new Map(held.map((each) => [`${each[0]}\n${each[1]}`, each]));
  const parts = [...own.values()].map(async ([field, operator]) => {
    const answer = await ask(without(field, operator), { field });
    return { field, operator, answer };
  });
  const now = { ...(await everything) };
  for (const { field, operator, answer } of await Promise.all(parts)) {
    if (field === "path" && operator === "ends with") now.types = answer.types;
    else if (field !== "path") now.fields = now.fields.map((each) => (each.field === field ? answer.fields[0] : each));
  }
  return now;
}

export async function showColumn() {
  const { name, error, fields } = current() ?? {};
  at("filters").hidden = at("open-filters").hidden = !name || Boolean(error) || !fields.length;
  if (at("filters").hidden) return;
  at("condition-field").replaceChildren(...fields.map((field) => element("option", {}, field)));
  if (whole?.name !== name) {
    whole = { name, answer: browse(name, {}).catch(() => null) };
    at("facets").replaceChildren();
  }
  const chosen = held;
  const all = await whole.answer;
  const now = chosen.length ? await counts(name).catch(() => null) : all;
  if (!all || !now || current()?.name !== name || held !== chosen) return;
  const ofFile = all.types.length ? ["path", "page", "pages"] : [];
  const facets = all.fields.filter(({ field }) => !ofFile.includes(field));
  const focused = document.activeElement?.closest("#facets button")?.firstChild.textContent;
  at("facets").replaceChildren(
    ...kinds(all, now),
    ...folders(all, now),
    ...facets.flatMap((each) => facet(each, now.fields.find(({ field }) => field === each.field))),
  );
  if (focused) [...at("facets").querySelectorAll("button")].find((each) => each.firstChild.textContent === focused)?.focus();
}

// What the filters leave, where nothing is searched for: { files, folders }.
export const listed = (name) => browse(name, { ...filters(), folder: folderOf(), field: "path" });

async function complete() {
  const asked = { field: at("condition-field").value, prefix: at("condition-value").value };
  const [found] = await describeFields(at("index").value, asked).catch(() => []);
  if (at("condition-value").value !== asked.prefix) return;
  const options = (found?.values ?? []).map((each) => element("option", { value: spelled(each.value) }));
  at("condition-values").replaceChildren(...options);
}

at("condition-operator").append(...TYPED.map((name) => element("option", {}, name)));
for (const event of ["focus", "input"]) at("condition-value").addEventListener(event, complete);
at("condition").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = ["field", "operator", "value"].map((part) => at(`condition-${part}`).value);
  at("condition-value").value = "";
  if (!isHeld(wanted)) change([...held, wanted]);
});
// The counts are those of another index, or of documents that were changed since.
export const forgetCounts = () => {
  whole = null;
  opened.clear();
};
