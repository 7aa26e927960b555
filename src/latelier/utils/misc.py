"""Small helpers of all packages: progress bars, warnings at the caller, lazy imports, signals, HTML.

Colours are the theme's own (``currentColor``) and transparent tints. There are no scripts and no external resources.
"""

from __future__ import annotations

import html
import inspect
import numbers
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from latelier.errors import MissingExtraError
from latelier.utils.checks import did_you_mean, printable

if TYPE_CHECKING:
    from types import FrameType

    from typing_extensions import Self


class Silent:
    """A progress bar that is not shown."""

    total: int | None = None

    def update(self, count: int = 1) -> None:
        """Do nothing."""


INTERVAL = 30.0  # seconds between the lines of a log


class Lines:
    """Progress in a log, where a bar would be one endless line."""

    def __init__(self, desc: str = "Progress", total: int | None = None, unit: str = "") -> None:
        self.total = total
        self._desc = desc
        self._unit = unit
        self._count = 0
        self._begin = self._told = time.monotonic()

    def update(self, count: int = 1) -> None:
        """Count, and print a line if it is time."""
        self._count += count
        if time.monotonic() - self._told >= INTERVAL:
            self._told = time.monotonic()
            of = "" if self.total is None else f" of {self.total:,}"
            sys.stderr.write(f"{self._desc}: {self._count:,}{of}{self._unit} so far{self._remaining()}.\n")

    def _remaining(self) -> str:
        """Return how long the others take at the same pace, if that is a second or more."""
        if self.total is None:
            return ""
        seconds = (self._told - self._begin) * max(0, self.total - self._count) / max(1, self._count)
        if seconds < 1:
            return ""
        return f", about {_duration(seconds)} left"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{round(seconds)} s"
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes / 60:.0f} h"


class Share:
    """The part of a bar that one step moves, by what it is given: it has `steps`, and moves the bar by `count`."""

    def __init__(self, bar: Any, count: int, steps: int) -> None:
        self._bar = bar
        self._count = count
        self._steps = max(1, steps)
        self._done = 0
        self._moved = 0
        self._lock = threading.Lock()  # batches are computed in several threads

    def update(self, steps: int = 1) -> None:
        """Move the bar."""
        with self._lock:
            self._done = min(self._done + steps, self._steps)
            self._move(self._count * self._done // self._steps)

    def finish(self) -> None:
        """Move the bar to the end of this part."""
        with self._lock:
            self._move(self._count)

    def _move(self, to: int) -> None:
        if to > self._moved:
            self._bar.update(to - self._moved)
            self._moved = to


_PATIENCE = 2.0  # seconds until a bar appears that nobody has asked for


def progress_bar(*, shown: bool | None, **options: Any) -> AbstractContextManager[Any]:
    """Return a progress bar of tqdm; lines, if standard error is neither a terminal nor in a notebook; or nothing.

    `shown`: None: a bar, if it takes longer than `_PATIENCE`, and no lines. Even a disabled bar takes a lock that forks
    share.
    """
    is_watched = sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    if sys.stderr is None or not (shown or (shown is None and is_watched)):
        return nullcontext(Silent())
    if not is_watched:
        return nullcontext(Lines(**options))
    from tqdm import TqdmWarning

    with warnings.catch_warnings():
        # In a notebook without ipywidgets, tqdm warns when it is imported, and its bars are text.
        warnings.simplefilter("ignore", TqdmWarning)
        from tqdm.auto import tqdm

    return tqdm(delay=0 if shown else _PATIENCE, **options)


# What calls this library, being called by users or by this library.
_LIBRARIES = ("latelier", "sentence_transformers", "transformers", "torch")


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's code that called the library."""
    depth = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] in _LIBRARIES:
        depth = depth + 1
        frame = frame.f_back
    warnings.warn(message, category, stacklevel=depth + 1)


def lazy_names(package: str, **modules: tuple[str, ...]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package that imports modules when names are used (PEP 562)."""
    home = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        own = vars(sys.modules[package])
        return sorted({*own.get("__all__", home), *(name for name in own if name.startswith("__"))})

    return load, names


Function = TypeVar("Function", bound=Callable[..., Any])


def show_options(**defaults: Any) -> Callable[[Function], Function]:
    """Show the keywords that a function takes as ``**options``, with their defaults, in ``help()`` and editors."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        shown = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        known = signature.parameters
        shown += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default in defaults.items()
            if name not in known
        ]
        function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        return function

    return decorate


@contextmanager
def needs_extra(feature: str, extra: str) -> Iterator[None]:
    """Surround imports of packages that only the extra `extra` installs; `feature` begins the message."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(feature, extra) from error


@contextmanager
def exits_on_signals() -> Iterator[None]:
    """Raise SystemExit on SIGTERM, which closes nothing by default, and KeyboardInterrupt on SIGINT even in scripts."""
    # uvicorn sends the signal again when its server has stopped. A handler that the program has set itself stays.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = (
        (signal.SIGTERM, signal.SIG_DFL, _exit),
        (signal.SIGINT, signal.SIG_IGN, signal.default_int_handler),
    )
    changed = [each for each in handlers if signal.getsignal(each[0]) is each[1]]
    for number, _, handler in changed:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before, _ in changed:
            signal.signal(number, before)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


class Closing:
    """What a ``with`` block closes."""

    def close(self) -> None:
        """Free what was opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class NotCopied(Closing):
    """An object with documents that neither `copy` nor `pickle` can copy; errors say what to do.

    They also say what methods of other libraries are called here.
    """

    if not TYPE_CHECKING:  # for which any name would be there

        def __getattr__(self, name: str) -> Any:
            names = [each for each in dir(type(self)) if not each.startswith("_")]
            meant = did_you_mean(name, names)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}.{meant}")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled: open its folder again where it is needed, or copy its "
            "documents with indexes.copy_documents(index, other)."
        )


# Every rule is about the class of `fragment`, so that a notebook's own elements keep their style.
# The class stands twice where a notebook's rules for cells, which align them to the right, are as specific.
_STYLE = """
.latelier { overflow-x: auto }
.latelier table { border-collapse: collapse; margin: .4em 0; font-size: .9em; color: inherit; background: none }
.latelier caption { text-align: start; caption-side: top; padding: .2em 0; color: inherit }
.latelier.latelier tr { background: none }
.latelier.latelier :is(th, td) { padding: .25em .7em; text-align: start; vertical-align: top; background: none;
  border-bottom: 1px solid rgba(128, 128, 128, .35); max-width: 48em; overflow-wrap: break-word; white-space: pre-wrap }
.latelier.latelier .number { text-align: end; font-variant-numeric: tabular-nums; white-space: nowrap }
.latelier td mark { color: inherit; background: rgba(250, 180, 0, .4); border: 0; border-radius: .2em }
.latelier-bar { display: block; min-width: 7em; padding: 0 .3em; text-align: end;
  background: linear-gradient(to right, rgba(59, 130, 246, .4) var(--part), rgba(128, 128, 128, .12) var(--part)) }
"""


class Markup(str):
    """HTML text, which `table` and `fragment` insert as it is; everything else they escape."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """Return a value as HTML text; control characters and bidirectional overrides are shown as escapes."""
    text = str(value).replace("\r\n", "\n").replace("\t", "    ")
    return Markup(html.escape(printable(text, lines=True)))


def bar(text: str, fraction: float) -> Markup:
    """Return a text on a horizontal bar whose length is a fraction, 0 to 1."""
    if fraction == fraction:
        percent = round(100 * min(max(fraction, 0.0), 1.0))
    else:
        percent = 0
    return Markup(f'<span class="latelier-bar" style="--part: {percent}%">{escape(text)}</span>')


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]], *, caption: Any = "") -> Markup:
    """Return a table; the first cell of a row is its header, numbers are aligned, floats have three decimals."""
    if caption:
        above = f"<caption>{_cell(caption)}</caption>"
    else:
        above = ""
    head = "".join(f'<th scope="col">{_cell(name)}</th>' for name in header)
    body = "\n".join(f"<tr>{_row(row)}</tr>" for row in rows)
    return Markup(f"<table>{above}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>")


def fragment(*parts: Any, style: str = "") -> str:
    """Return what a ``_repr_html_`` returns: the parts in one element, with the style that they need."""
    inner = "\n".join(part if isinstance(part, Markup) else f"<p>{escape(part)}</p>" for part in parts)
    return f'<style>{_STYLE}{style}</style>\n<div class="latelier">\n{inner}\n</div>'


def _row(cells: Sequence[Any]) -> str:
    first, *others = cells
    return f'<th scope="row">{_cell(first)}</th>' + "".join(
        f'<td class="number">{_cell(cell)}</td>' if _is_number(cell) else f"<td>{_cell(cell)}</td>" for cell in others
    )


def _cell(value: Any) -> Markup:
    if isinstance(value, Markup):
        return value
    if _is_number(value):
        return Markup(f"{value:,}" if isinstance(value, numbers.Integral) else f"{value:.3f}")
    return escape("" if value is None else value)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
