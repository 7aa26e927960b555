"""Choosing the device to compute on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import short

if TYPE_CHECKING:
    import torch


def resolve_device(device: str | torch.device | None = None) -> torch.device:
    """Return the device to compute on.

    Parameters
    ----------
    device
        ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``, or a `torch.device`; None takes the best available one:
        CUDA, then Apple's MPS, then the CPU.

    Examples
    --------
    >>> resolve_device("cpu")
    device(type='cpu')
    """
    import torch

    if device is None:
        return torch.device(_available()[-1])
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"unknown device {short(device)}; expected 'cpu', 'cuda', 'cuda:1', 'mps', or None for the best available."
        ) from error
    missing = resolved.type in ("cuda", "mps") and resolved.type not in _available()
    if missing or (resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count()):
        raise InvalidArgumentError(
            f"device {str(device)!r} was asked for, but torch {torch.__version__} finds "
            f"{torch.cuda.device_count()} CUDA devices here; available: {', '.join(_available())}."
        )
    if resolved.type not in ("cpu", "cuda", "mps"):
        try:
            torch.zeros(1, device=resolved).cpu()
        except (RuntimeError, AssertionError) as error:  # such as "meta", whose tensors hold no data
            raise InvalidArgumentError(f"nothing can be computed on device {str(device)!r} here.") from error
    return resolved


def _available() -> list[str]:
    """Return the available device types, the best last."""
    import torch

    found = ["cpu"]
    if torch.backends.mps.is_available():
        found.append("mps")
    if torch.cuda.is_available():
        found.append("cuda")
    return found
