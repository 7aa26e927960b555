"""The demo's index, made once per user and kept in the cache folder, and a session that answers questions from it."""

from __future__ import annotations

import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latelier import indexes
from latelier.demo.corpus import standard_library_documents
from latelier.errors import LatelierError, StorageError
from latelier.models.location import DEFAULT_MODEL
from latelier.retrieve import Retriever
from latelier.retrieve.model import ModelIdentity, encoder_folder, is_exported
from latelier.utils.files import cache_folder

if TYPE_CHECKING:
    from types import TracebackType

    from latelier.retrieve import Explanation, Result

QUESTIONS = (
    "parse command line arguments",
    "compute a sha256 digest",
    "wait for several threads",
    "read a csv file with a header",
    "match text against a pattern",
)
# A docstring begins with its subject: 64 tokens give the same answers in two thirds of the time.
MODEL_OPTIONS: dict[str, Any] = {"max_length_document": 64}


def demo_folder() -> Path:
    """Return the folder of the demo's index: one for each Python, model, its length and version of this library."""
    model = f"{DEFAULT_MODEL.rpartition('/')[2]}-{MODEL_OPTIONS['max_length_document']}"
    return cache_folder() / f"demo-python{platform.python_version()}-{model}-latelier{version('latelier')}"


def build(folder: Path, documents: Iterable[Any], *, device: str | None = None, show_progress: bool = False) -> None:
    """Make the index in a temporary folder beside ``folder`` and rename it when it is complete.

    `device`: where the model runs; None takes the best available device. `show_progress`: show a progress bar on
    standard error. Raises `StorageError` if the cache folder cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix="unfinished-"))
    except OSError as error:
        raise StorageError(
            f"cannot write the cache {folder.parent}: {error}. Set LATELIER_CACHE to a folder that can be written."
        ) from error
    try:
        index = indexes.Flat(unfinished, dtype="float16")
        with Retriever(DEFAULT_MODEL, index, device=device, model_options=MODEL_OPTIONS) as retriever:
            retriever.add(documents, show_progress=show_progress)
        unfinished.rename(folder)
    except OSError as error:
        # The folder exists if another process finished the same index first.
        if isinstance(error, LatelierError) or not folder.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


class Session:
    """The demo's model and index; makes the index if it does not exist, and records the seconds of each phase.

    With the extra ``onnx`` it exports the encoder, with which later sessions answer without torch. `on_first_run` is
    called with the number of documents and the folder before the index is made.
    """

    def __init__(
        self,
        device: str | None = None,
        *,
        on_first_run: Callable[[int, Path], None] | None = None,
        show_progress: bool = False,
    ) -> None:
        self.folder = demo_folder()
        self.seconds: dict[str, float] = {}
        if not self.folder.is_dir():
            with self._timed("reading docstrings"):
                documents = list(standard_library_documents())
            if on_first_run is not None:
                on_first_run(len(documents), self.folder)
            with self._timed("indexing"):
                build(self.folder, documents, device=device, show_progress=show_progress)
        with self._timed("loading the model"):
            self._retriever = Retriever.open(self.folder, device=device, read_only=True)
        if not self._has_encoder():
            with self._timed("exporting the encoder"), suppress(LatelierError):  # the model answers without it
                self._retriever.export_encoder()

    def answer(self, question: str, k: int) -> tuple[list[Result], dict[Any, Explanation]]:
        """Return the ``k`` best results for a question, and a dict of the best one's id to its explanation."""
        with self._timed("answering"):
            results = self._retriever.search(question, k)
            return results, {result.id: self._retriever.explain(question, result.id) for result in results[:1]}

    def _has_encoder(self) -> bool:
        """Whether the encoder is exported, or cannot be because the extra ``onnx`` is missing."""
        stored = ModelIdentity.stored_in(self._retriever.index)
        missing = any(find_spec(package) is None for package in ("onnxruntime", "onnxscript"))
        return missing or stored is None or is_exported(encoder_folder(stored))

    @property
    def retriever(self) -> Retriever:
        """The retriever over the documentation, for reading only."""
        return self._retriever

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._retriever)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._retriever.close()

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
