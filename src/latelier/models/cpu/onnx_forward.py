"""ONNX Runtime in place of a transformer's forward, for as long as texts are encoded."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from latelier.kernels.threads import map_each
from latelier.models.cpu.fingerprint import Fingerprint
from latelier.models.cpu.module_tree import ModuleTree, PatchedForward
from latelier.models.cpu.onnx_session import INPUTS, OnnxEncoder
from latelier.models.cpu.onnx_store import encoder_fingerprint, has_adapters, stored_export

__all__ = ["ComputeAhead", "exported_session", "known_fingerprint", "onnx_forward"]

ComputeAhead = Callable[[Sequence[Mapping[str, Any]]], None]

_KNOWN_OPTIONS = {*INPUTS, "return_dict"}

logger = logging.getLogger(__name__)
_lock = Lock()


def exported_session(encoder: nn.Module, compute_dtype: str) -> OnnxEncoder | None:
    """Return the session of a transformer's export, which is made if there is no export of these weights yet.

    Weights that have changed since the first call are not exported again, as they may change in each step of a
    training.

    Parameters
    ----------
    encoder
        The transformer, on the CPU.
    compute_dtype
        ``"float32"`` or ``"int8"``.

    Returns
    -------
    OnnxEncoder or None
        None if the weights have changed, the transformer has adapters, is compiled, or has a hook or a replaced forward
        inside.

    Raises
    ------
    LatelierError
        If the transformer cannot be exported.
    """
    exports = _exports.get(encoder)
    if exports is None:
        exports = _exports[encoder] = _Exports(encoder)
    return exports.session(encoder, compute_dtype)


def known_fingerprint(encoder: nn.Module) -> str:
    """Return the `encoder_fingerprint` that a transformer had at the first call; hashing its weights takes a while."""
    if encoder not in _exports:
        _exports[encoder] = _Exports(encoder)
    return _exports[encoder].fingerprint


@contextmanager
def onnx_forward(encoder: nn.Module, session: OnnxEncoder) -> Iterator[ComputeAhead]:
    """Run a session in place of a transformer's forward inside the block.

    It replaces it for the calling thread. With gradients, under autocast, for inputs other than a padded batch, and in
    threads outside such a block, the transformer computes itself.

    Yields
    ------
    callable
        Given the features of several batches, it computes their hidden states, each by one thread, which takes less
        than all threads sharing each batch. The transformer is to be called for the same batches next, in this order.
    """
    batches = _Batches(session)
    thread = get_ident()
    with _lock:
        forward = encoder.__dict__.get("forward")
        if not isinstance(forward, _OnnxForward):
            forward = encoder.__dict__["forward"] = _OnnxForward(encoder)  # as in `patched_forwards`
        forward.batches[thread] = batches
    try:
        yield batches.compute_ahead
    finally:
        with _lock:
            del forward.batches[thread]
            if not forward.batches and encoder.__dict__.get("forward") is forward:
                del encoder.__dict__["forward"]


class _Exports:
    """The sessions of one transformer, and what tells whether its weights are those that were exported.

    It holds no reference to the transformer, by which it is found in a weak dictionary.
    """

    def __init__(self, encoder: nn.Module) -> None:
        self.fingerprint = encoder_fingerprint(encoder)
        self._is_current = True
        self._sessions: dict[str, OnnxEncoder] = {}
        self._look(encoder)

    def session(self, encoder: nn.Module, compute_dtype: str) -> OnnxEncoder | None:
        """Return a session for the weights that the transformer has now; None if they are not those exported."""
        if not (self._tree.is_unchanged() and self._weights.matches()):
            # Weights also move without changing, to memory that worker processes share for instance.
            is_current = encoder_fingerprint(encoder) == self.fingerprint
            if self._is_current and not is_current:
                logger.info("the weights have changed since they were exported: encoding with torch")
            self._is_current = is_current
            self._look(encoder)
        if not self._is_current or self._has_adapters or _is_replaced(encoder) or self._tree.is_overridden():
            return None
        known, threads = self._sessions.get(compute_dtype), torch.get_num_threads()
        if known is None or known.threads != threads:
            folder = stored_export(encoder, compute_dtype, self.fingerprint)
            known = self._sessions[compute_dtype] = OnnxEncoder(folder, threads)
        return known

    def _look(self, encoder: nn.Module) -> None:
        self._tree = ModuleTree(encoder)
        self._weights = Fingerprint([encoder, *self._tree.modules])
        self._has_adapters = has_adapters(encoder)


_exports: WeakKeyDictionary[nn.Module, _Exports] = WeakKeyDictionary()


def _is_replaced(encoder: nn.Module) -> bool:
    """Whether a transformer is compiled, or its forward is neither its own nor one of ours."""
    forward = encoder.__dict__.get("forward")
    return encoder._compiled_call_impl is not None or not (forward is None or isinstance(forward, PatchedForward))


class _Batches:
    """The batches that one thread encodes: computed when they are asked for, or several of them ahead."""

    def __init__(self, session: OnnxEncoder) -> None:
        self._session = session
        self._ahead: deque[tuple[list[Any], np.ndarray]] = deque()

    def compute_ahead(self, batches: Sequence[Mapping[str, Any]]) -> None:
        """Compute batches, each by one thread. Nothing here is torch's: it would start its own threads in each."""
        inputs = [_inputs(batch) for batch in batches]
        self._ahead = deque(zip(inputs, map_each(lambda given: self._session.run(*given), inputs), strict=True))

    def run(self, inputs: list[Any]) -> np.ndarray:
        """Return the hidden states of a batch."""
        while self._ahead:
            given, hidden = self._ahead.popleft()
            if all(map(_is_same, given, inputs)):
                return hidden
        return self._session.run(*inputs)


def _inputs(options: Mapping[str, Any]) -> list[Any]:
    given = (options.get(name) for name in INPUTS)
    return [None if each is None else each.long().numpy() for each in given]


def _is_same(given: np.ndarray | None, other: np.ndarray | None) -> bool:
    if given is None or other is None:  # token types that are not given are zeros
        return not any(each is not None and each.any() for each in (given, other))
    return np.array_equal(given, other)


class _OnnxForward(PatchedForward):
    """Replaces the forward of a transformer in the threads that have a session."""

    __slots__ = ("_encoder", "batches")

    def __init__(self, encoder: nn.Module) -> None:
        self._encoder = encoder
        self.batches: dict[int, _Batches] = {}

    def __call__(self, *args: Any, **options: Any) -> Any:
        batches = self.batches.get(get_ident())
        computes_itself = args or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
        if batches is None or computes_itself or not _accepts(options):
            return type(self._encoder).forward(self._encoder, *args, **options)
        return BaseModelOutput(last_hidden_state=torch.from_numpy(batches.run(_inputs(options))))


def _accepts(options: dict[str, Any]) -> bool:
    """Whether a call is for a padded batch of token ids, with no option that an export does not know."""
    ids, mask = options.get("input_ids"), options.get("attention_mask")
    if not isinstance(ids, Tensor) or not isinstance(mask, Tensor) or mask.shape != ids.shape or ids.ndim != 2:
        return False
    return ids.numel() > 0 and all(name in _KNOWN_OPTIONS or not value for name, value in options.items())
