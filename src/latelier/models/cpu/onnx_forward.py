"""ONNX Runtime in place of a transformer's forward, for as long as texts are encoded."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from latelier.models.cpu.onnx_session import INPUTS, OnnxEncoder
from latelier.models.cpu.onnx_store import encoder_fingerprint, stored_export
from latelier.models.cpu.prepacked import submodules

__all__ = ["exported_session", "known_fingerprint", "onnx_forward"]

_KNOWN_OPTIONS = {*INPUTS, "return_dict"}
_SAMPLES = 16  # numbers of each weight that are compared in each call, as in `prepacked`

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
        None if the weights have changed, a hook is registered inside the transformer, or it is compiled.

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
def onnx_forward(encoder: nn.Module, session: OnnxEncoder) -> Iterator[None]:
    """Run a session in place of a transformer's forward inside the block.

    With gradients, under autocast and for inputs other than a padded batch, the transformer computes itself.
    """
    encoder.__dict__["forward"] = _OnnxForward(encoder, session)  # as in `patched_forwards`
    try:
        yield
    finally:
        encoder.__dict__.pop("forward", None)


class _Exports:
    """The sessions of one transformer, and what tells whether its weights are those that were exported."""

    def __init__(self, encoder: nn.Module) -> None:
        self.fingerprint = encoder_fingerprint(encoder)
        self._weights = _Weights(encoder)
        self._is_current = True
        self._sessions: dict[str, OnnxEncoder] = {}

    def session(self, encoder: nn.Module, compute_dtype: str) -> OnnxEncoder | None:
        """Return a session for the weights that the transformer has now; None if they are not those exported."""
        if not self._weights.match(encoder):
            # Weights also move without changing, to memory that worker processes share for instance.
            is_current = encoder_fingerprint(encoder) == self.fingerprint
            if self._is_current and not is_current:
                logger.info("the weights have changed since they were exported: encoding with torch")
            self._weights, self._is_current = _Weights(encoder), is_current
        if not self._is_current or self._weights.are_observed:
            return None
        known, threads = self._sessions.get(compute_dtype), torch.get_num_threads()
        if known is None or known.threads != threads:
            folder = stored_export(encoder, compute_dtype, self.fingerprint)
            known = self._sessions[compute_dtype] = OnnxEncoder(folder, threads)
        return known


_exports: WeakKeyDictionary[nn.Module, _Exports] = WeakKeyDictionary()


class _Weights:
    """Where the weights of a transformer are, and some of their bytes: enough to see that they have changed."""

    def __init__(self, encoder: nn.Module) -> None:
        self._modules = submodules(encoder)
        self._places = self._find_places()
        self._samples = [_sample(tensor) for tensor in self._tensors()]
        self._bytes = [sample.tobytes() for sample in self._samples]

    @property
    def are_observed(self) -> bool:
        """Whether a hook is registered inside the transformer, or it is compiled."""
        first, *inside = self._modules
        return first._compiled_call_impl is not None or any(
            module._forward_hooks or module._forward_pre_hooks or module._compiled_call_impl is not None
            for module in inside
        )

    def match(self, encoder: nn.Module) -> bool:
        """Whether the transformer has the same modules and weights."""
        # Places first: the memory of a sample may be freed where a weight has moved.
        same = submodules(encoder) == self._modules and self._find_places() == self._places
        return same and [sample.tobytes() for sample in self._samples] == self._bytes

    def _tensors(self) -> list[Tensor]:
        return [tensor for module in self._modules for tensor in module._parameters.values() if tensor is not None]

    def _find_places(self) -> list[tuple[int, int]]:
        return [(each.data_ptr(), 0 if each.is_inference() else each._version) for each in self._tensors()]


def _sample(tensor: Tensor) -> np.ndarray:
    """Return a view of the lowest byte of some numbers; in-place changes through ``.data`` leave no other trace."""
    flat = tensor.detach().reshape(-1).view(torch.uint8)
    return flat[:: max(1, tensor.numel() // _SAMPLES) * tensor.element_size()].numpy()


class _OnnxForward:
    """Replaces the forward of a transformer."""

    __slots__ = ("_encoder", "_session")

    def __init__(self, encoder: nn.Module, session: OnnxEncoder) -> None:
        self._encoder = encoder
        self._session = session

    def __call__(self, *args: Any, **options: Any) -> Any:
        if args or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not _accepts(options):
            return type(self._encoder).forward(self._encoder, *args, **options)
        given = (options.get(name) for name in INPUTS)
        inputs: list[Any] = [None if each is None else each.long().numpy() for each in given]
        hidden = self._session.run(*inputs)
        return BaseModelOutput(last_hidden_state=torch.from_numpy(hidden))


def _accepts(options: dict[str, Any]) -> bool:
    """Whether a call is for a padded batch of token ids, with no option that an export does not know."""
    ids, mask = options.get("input_ids"), options.get("attention_mask")
    if not isinstance(ids, Tensor) or not isinstance(mask, Tensor) or mask.shape != ids.shape or ids.ndim != 2:
        return False
    return ids.numel() > 0 and all(name in _KNOWN_OPTIONS or not value for name, value in options.items())
