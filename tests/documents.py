"""Run the Python blocks of a Markdown page and compare what they print with what the page shows."""

import contextlib
import doctest
import io
import itertools
import json
import re
import textwrap
from typing import NamedTuple

# Three backticks, the language, the lines between, and three backticks; indented where it stands in a list.
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*).*?\n(?P<body>(?:.*\n)*?)(?P=indent)```$", re.MULTILINE)
COMPARE = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def write_beir(folder, documents, queries, qrels):
    """Write a collection as BEIR has it; documents by id are texts, or pairs of a title and a text."""
    (folder / "qrels").mkdir(parents=True)
    pairs = {id: ("", given) if isinstance(given, str) else given for id, given in documents.items()}
    for name, rows in {
        "corpus": [{"_id": id, "title": title, "text": text} for id, (title, text) in pairs.items()],
        "queries": [{"_id": id, "text": text} for id, text in queries.items()],
    }.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [f"{query}\t{id}\t{value}" for query, judged in qrels.items() for id, value in judged.items()]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    return folder


class Block(NamedTuple):
    """A ``python`` block, its line on the page, and the ``text`` block that follows it as its output."""

    line: int
    code: str
    output: str | None


def python_blocks(page: str) -> list[Block]:
    fences = list(FENCE.finditer(page))
    blocks = []
    for fence, following in itertools.zip_longest(fences, fences[1:]):
        if fence["language"] == "python":
            line = page.count("\n", 0, fence.start("body")) + 1
            shown = following is not None and following["language"] == "text"
            output = textwrap.dedent(following["body"]) if shown else None
            blocks.append(Block(line, textwrap.dedent(fence["body"]), output))
    return blocks


def without_blocks(page: str) -> str:
    return FENCE.sub("", page)


def run_block(block: Block, page: str, names: dict[str, object]) -> None:
    """Run a block, and fail unless it prints what the page shows; ``names`` is what the page has defined so far."""
    printed = io.StringIO()
    if block.code.startswith(">>>"):
        example = doctest.DocTestParser().get_doctest(block.code, names, page, page, block.line - 1)
        failed = doctest.DocTestRunner(optionflags=COMPARE).run(example, out=printed.write, clear_globs=False).failed
        names.update(example.globs)
        assert not failed, printed.getvalue()
        return
    with contextlib.redirect_stdout(printed):
        # Empty lines before the code, so that a traceback names the line of the page.
        exec(compile("\n" * (block.line - 1) + block.code, page, "exec"), names)
    if block.output is not None:
        same = doctest.OutputChecker().check_output(block.output, printed.getvalue(), COMPARE)
        assert same, f"{page}:{block.line} prints\n{printed.getvalue()}and the page shows\n{block.output}"
