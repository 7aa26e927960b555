// Why a document is not among the results, and the changes that would find it.

import { findIds, whyNot } from "./api.js";
import { setConditions } from "./filters.js";
import { element } from "./render.js";
import { at, searchNow } from "./state.js";

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
  filter: () => ["leave out the filters", () => setConditions([])],
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
    searchNow();
  });
  return element("li", {}, button);
}

async function complete() {
  const begun = at("why-not-id").value;
  const ids = await findIds(at("index").value, begun).catch(() => []);
  if (at("why-not-id").value !== begun) return;
  at("ids").replaceChildren(...ids.map((id) => element("option", { value: id })));
}

async function ask(event, asked) {
  event.preventDefault();
  const answer = at("why-not-answer");
  answer.textContent = "Searching for the causes…";
  try {
    const question = { query: at("query").value, id: at("why-not-id").value, ...asked() };
    const { is_found: isFound, report, causes, changes } = await whyNot(at("index").value, question);
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

// `asked` returns the options of the search that is shown.
export function answerWhyNot(asked) {
  at("why-not-id").addEventListener("input", complete);
  at("why-not-id").addEventListener("focus", complete);
  at("why-not-form").addEventListener("submit", (event) => ask(event, asked));
}
