"""One run of the demo: its model, its index, its questions, and how long each phase took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import typer

from latelier import indexes
from latelier.cli.output import bold, is_terminal, result_lines, results_json, show_progress
from latelier.cli.printable import printable
from latelier.cli.retrievers import quiet_loading
from latelier.demo.corpus import standard_library_documents
from latelier.demo.index import MODEL_OPTIONS, build, demo_folder
from latelier.models import load
from latelier.retrieve import Result, Retriever

__all__ = ["QUESTIONS", "Session"]

QUESTIONS = (
    "parse command line arguments",
    "compute a sha256 digest",
    "wait for several threads",
    "read a csv file with a header",
    "match text against a pattern",
)


class Session:
    """The demo, ready to answer; makes its index where there is none yet.

    Parameters
    ----------
    device
        Where the model runs; None is the best there is.
    """

    def __init__(self, device: str | None) -> None:
        self.seconds: dict[str, float] = {}
        self.folder = demo_folder()
        quiet_loading()
        with self._timed("loading the model"):
            model = load(device=device, **MODEL_OPTIONS)
        if not self.folder.is_dir():
            with self._timed("reading docstrings"):
                documents = list(standard_library_documents())
            typer.echo(f"First run: indexing {len(documents):,} docstrings into {self.folder}", err=True)
            with self._timed("indexing"):
                build(self.folder, model, documents, show_progress=show_progress())
        self.retriever = Retriever(model, indexes.open(self.folder, read_only=True))

    def answer_all(self, query: str | None, k: int, *, quiet: bool) -> list[dict[str, Any]]:
        """Answer the query, or the prepared questions where it is None; print the answers unless `quiet`."""
        answers = []
        with self._timed("answering"):
            for question in QUESTIONS if query is None else (query,):
                results = self.retriever.search(question, k)
                explanations = {result.id: self.retriever.explain(question, result.id) for result in results[:1]}
                if not quiet:
                    lines = result_lines(map(_with_summary, results), explanations)
                    typer.echo("\n".join([f"\n{bold(printable(question))}", *lines]))
                answers.append({"query": question, "results": results_json(results, explanations)})
        return answers

    def prompt(self, k: int) -> None:
        """Answer what a person types, until an empty line; do nothing where no person is there."""
        if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
            return
        with suppress(ImportError):
            import readline  # noqa: F401 (gives input() its line editing)
        with suppress(EOFError, KeyboardInterrupt):
            while question := input("\nYour question (an empty line ends): ").strip():
                self.answer_all(question, k, quiet=False)

    def facts(self) -> dict[str, Any]:
        """Return what was searched and how long each phase took, in seconds."""
        seconds = {phase: round(value, 3) for phase, value in self.seconds.items()}
        return {"index": str(self.folder), "documents": len(self.retriever), "seconds": seconds}

    def times(self) -> str:
        """Return one line with the number of documents and the time of each phase."""
        phases = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())
        return f"{len(self.retriever):,} docstrings; {phases}"

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.retriever.close()

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


def _with_summary(result: Result) -> Result:
    """Return the result with the first line of its docstring for a text; the line before it repeats the name."""
    return result._replace(text=(result.text or "").partition("\n")[2].partition("\n")[0])
