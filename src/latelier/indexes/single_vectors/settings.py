"""`single_vectors_from_dict`: the inverse of `SingleVectors.to_dict`, for what an index has stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.indexes.single_vectors.base import SingleVectors
from latelier.indexes.single_vectors.fde import FixedDimensionalEncodings
from latelier.indexes.single_vectors.mean import MeanVectors
from latelier.utils.checks import short

__all__ = ["single_vectors_from_dict"]

_KINDS: dict[str, type[SingleVectors]] = {each.kind: each for each in (MeanVectors, FixedDimensionalEncodings)}


def single_vectors_from_dict(settings: Mapping[str, Any]) -> SingleVectors:
    """Return the `SingleVectors` of a dict that `SingleVectors.to_dict` returned.

    Parameters
    ----------
    settings
        The kind and all parameters.

    Returns
    -------
    SingleVectors
        Equal to the one that the dict came from.

    Raises
    ------
    InvalidArgumentError
        If this version knows no such kind, or not these parameters of it.

    Examples
    --------
    >>> single_vectors_from_dict({"kind": "mean"})
    MeanVectors()
    """
    if not isinstance(settings, Mapping):
        raise InvalidArgumentError(f"received {short(settings)}; give what SingleVectors.to_dict returned.")
    parameters = dict(settings)
    kind = parameters.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidArgumentError(
            f"received single vectors of kind {short(kind)}; this version of latelier knows {', '.join(_KINDS)}."
        )
    try:
        return _KINDS[kind](**parameters)
    except TypeError as error:
        raise InvalidArgumentError(
            f"received the parameters {short(sorted(parameters))} for single vectors of kind {kind!r}: {error}. "
            "Upgrade latelier, if a later version wrote them."
        ) from error
