// From answers of the server to elements. Texts become text nodes, never markup.

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// The text of a document, with the spans that added to its score marked; `spans` may be empty.
export function highlighted(text, spans) {
  const characters = Array.from(text); // offsets count code points, as in Python
  const strongest = Math.max(...spans.map((span) => span.contribution), 0);
  const nodes = [];
  let end = 0;
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    if (span.start < end) continue;
    nodes.push(characters.slice(end, span.start).join(""));
    const word = characters.slice(span.start, span.end).join("");
    const level = strongest > 0 ? Math.ceil((4 * span.contribution) / strongest) : 0;
    const title = `adds ${span.contribution.toFixed(3)} to the score`;
    nodes.push(level > 0 ? element("mark", { className: `level-${level}`, title }, word) : word);
    end = span.end;
  }
  nodes.push(characters.slice(end).join(""));
  return nodes;
}

// The similarities of query tokens (rows) with document tokens (columns).
export function heatMap(explanation) {
  const { query_tokens, document_tokens, similarities } = explanation;
  const head = element("tr", {}, element("th", { scope: "col", className: "corner" }, "query \\ document"));
  for (const token of document_tokens) head.append(element("th", { scope: "col" }, token));
  const body = element("tbody");
  similarities.forEach((row, i) => {
    const best = row.indexOf(Math.max(...row));
    const line = element("tr", {}, element("th", { scope: "row" }, query_tokens[i]));
    row.forEach((value, j) => {
      const level = Math.max(0, Math.min(6, Math.round(value * 6)));
      const title = `${query_tokens[i]} and ${document_tokens[j]}: ${value.toFixed(3)}`;
      const cell = element("td", { className: `h${level}`, title, ariaLabel: value.toFixed(2) });
      if (j === best) {
        cell.classList.add("best");
        cell.textContent = value.toFixed(2);
      }
      line.append(cell);
    });
    body.append(line);
  });
  const caption = element("caption", { className: "hidden" }, "Similarity of each query token with each document token");
  const table = element("table", {}, caption, element("thead", {}, head), body);
  return element("div", { className: "heat", tabIndex: 0, role: "region", ariaLabel: "Heat map" }, table);
}

// The stages of a search, with the time of each; the total stands beside them.
export function stageTimes(milliseconds) {
  return Object.entries(milliseconds)
    .filter(([stage]) => stage !== "total")
    .map(([stage, value]) => element("li", {}, `${stage} ${value.toFixed(1)} ms`));
}
