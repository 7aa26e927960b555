"""Forwards of modules, replaced in the threads that encode, and in no others."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any

from torch import nn

__all__ = ["PatchedForward", "replaced_forwards"]

_lock = Lock()


class PatchedForward:
    """The forward of a module: another one in some threads, in all others that of its class."""

    __slots__ = ("_module", "by_thread")

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.by_thread: dict[int, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the forward of this thread."""
        forward = self.by_thread.get(get_ident())
        return (
            type(self._module).forward(self._module, *args, **options) if forward is None else forward(*args, **options)
        )


@contextmanager
def replaced_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replace the forwards of modules for the calling thread inside the block; blocks may be nested.

    Pickles and copies of the modules, made by any thread meanwhile, have the forwards of their classes. `forwards`: the
    replacement of each module's forward.
    """
    thread, before = get_ident(), {}
    with _lock:
        for module, forward in forwards.items():
            patched = module.__dict__.get("forward")
            if not isinstance(patched, PatchedForward):
                copyreg.dispatch_table.setdefault(type(module), _reduce)
                # Not by setattr: torch searches parameters and buffers there, a measurable part of a short query.
                patched = module.__dict__["forward"] = PatchedForward(module)
            before[module] = patched, patched.by_thread.get(thread)
            patched.by_thread[thread] = forward
    try:
        yield
    finally:
        with _lock:
            for module, (patched, outer) in before.items():
                if outer is not None:
                    patched.by_thread[thread] = outer
                    continue
                del patched.by_thread[thread]
                if not patched.by_thread and module.__dict__.get("forward") is patched:
                    del module.__dict__["forward"]


def _reduce(module: nn.Module) -> Any:
    """Reduce a module, to pickle or copy it, without what is patched: prepacked weights have no storage to read."""
    reduced = module.__reduce_ex__(4)
    match reduced:
        case (create, arguments, dict() as state, *others):
            own = {name: value for name, value in state.items() if not isinstance(value, PatchedForward)}
            return create, arguments, own, *others
    return reduced
