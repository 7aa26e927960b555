// From answers of the server to elements. Texts become text nodes, never markup.

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// The characters from `from` to before `to` of a text, with the spans that added to its score marked.
export function highlighted(text, spans, from = 0, to = Infinity) {
  const characters = Array.from(text); // offsets count code points, as in Python
  const strongest = Math.max(...spans.map((span) => span.contribution), 0);
  const last = Math.min(to, characters.length);
  const nodes = [from > 0 ? "… " : ""];
  let end = from;
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    if (span.start < end || span.end > last) continue;
    nodes.push(characters.slice(end, span.start).join(""));
    const word = characters.slice(span.start, span.end).join("");
    const level = strongest > 0 ? Math.ceil((4 * span.contribution) / strongest) : 0;
    const title = `adds ${span.contribution.toFixed(3)} to the score`;
    nodes.push(level > 0 ? element("mark", { className: `level-${level}`, title }, word) : word);
    end = span.end;
  }
  nodes.push(characters.slice(end, last).join(""), last < characters.length ? " …" : "");
  return nodes;
}

// The similarities of the words of a query (rows) with those of a document (columns): the best of their tokens.
export function heatMap(explanation) {
  const { query_words, document_words, similarities } = explanation;
  const special = (word) => (word.is_special ? { className: "special", title: "a token of the model's own" } : {});
  const head = element("tr", {}, element("th", { scope: "col", className: "corner" }, "query \\ document"));
  for (const word of document_words) head.append(element("th", { scope: "col", ...special(word) }, word.word));
  const body = element("tbody");
  for (const asked of query_words) {
    const values = document_words.map((word) =>
      Math.max(...asked.positions.flatMap((i) => word.positions.map((j) => similarities[i][j]))),
    );
    const best = values.indexOf(Math.max(...values));
    const line = element("tr", {}, element("th", { scope: "row", ...special(asked) }, asked.word));
    values.forEach((value, j) => {
      const level = Math.max(0, Math.min(6, Math.round(value * 6)));
      const title = `${asked.word} and ${document_words[j].word}: ${value.toFixed(3)}`;
      const cell = element("td", { className: `h${level}`, title, ariaLabel: value.toFixed(2) });
      if (j === best) {
        cell.classList.add("best");
        cell.textContent = value.toFixed(2);
      }
      line.append(cell);
    });
    body.append(line);
  }
  const caption = element("caption", { className: "hidden" }, "Similarity of each word of the query with each of the document");
  const table = element("table", {}, caption, element("thead", {}, head), body);
  return element("div", { className: "heat", tabIndex: 0, role: "region", ariaLabel: "Heat map" }, table);
}

// The stages of a search, with the time of each; the total stands beside them.
export function stageTimes(milliseconds) {
  return Object.entries(milliseconds)
    .filter(([stage]) => stage !== "total")
    .map(([stage, value]) => element("li", {}, `${stage} ${value.toFixed(1)} ms`));
}
