"""ONNX Runtime in place of a transformer's forward, for as long as texts are encoded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from latelier.models.cpu.fingerprint import Fingerprint
from latelier.models.cpu.module_tree import ModuleTree
from latelier.models.cpu.onnx_session import INPUTS, OnnxEncoder
from latelier.models.cpu.onnx_store import encoder_fingerprint, has_adapters, stored_export
from latelier.models.cpu.patching import PatchedForward, replaced_forwards

__all__ = ["exported_session", "known_fingerprint", "onnx_forward"]

_KNOWN_OPTIONS = {*INPUTS, "return_dict"}

logger = logging.getLogger(__name__)


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
def onnx_forward(encoder: nn.Module, session: OnnxEncoder, heads: Iterable[nn.Linear] = ()) -> Iterator[None]:
    """Run a session in place of a transformer's forward inside the block.

    It replaces it for the calling thread. With gradients, under autocast, for inputs other than a padded batch, and in
    threads outside such a block, the transformer computes itself.

    Parameters
    ----------
    encoder
        The transformer.
    session
        The session of its export, which returns float32 whatever the dtype of the weights is.
    heads
        The linear layers after it. Those of another dtype multiply in float32 too.
    """
    forwards: dict[nn.Module, Callable[..., Any]] = {encoder: _OnnxForward(encoder, session)}
    forwards |= {each: partial(_in_float32, each) for each in heads if each.weight.dtype != torch.float32}
    with replaced_forwards(forwards):
        yield


def _in_float32(linear: nn.Linear, input: Tensor) -> Tensor:
    bias = None if linear.bias is None else linear.bias.float()
    return nn.functional.linear(input.float(), linear.weight.float(), bias)


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
        known = self._sessions.get(compute_dtype)
        if known is None:
            folder = stored_export(encoder, compute_dtype, self.fingerprint)
            known = self._sessions[compute_dtype] = OnnxEncoder(folder)
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


class _OnnxForward:
    """Replaces the forward of a transformer."""

    __slots__ = ("_encoder", "_session")

    def __init__(self, encoder: nn.Module, session: OnnxEncoder) -> None:
        self._encoder = encoder
        self._session = session

    def __call__(self, *args: Any, **options: Any) -> Any:
        computes_itself = args or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
        if computes_itself or not _accepts(options):
            return type(self._encoder).forward(self._encoder, *args, **options)
        given = (options.get(name) for name in INPUTS)
        inputs: list[Any] = [None if each is None else each.long().numpy() for each in given]
        return BaseModelOutput(last_hidden_state=torch.from_numpy(self._session.run(*inputs)))


def _accepts(options: dict[str, Any]) -> bool:
    """Whether a call is for a padded batch of token ids, with no option that an export does not know."""
    ids, mask = options.get("input_ids"), options.get("attention_mask")
    if not isinstance(ids, Tensor) or not isinstance(mask, Tensor) or mask.shape != ids.shape or ids.ndim != 2:
        return False
    return ids.numel() > 0 and all(name in _KNOWN_OPTIONS or not value for name, value in options.items())
