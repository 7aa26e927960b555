"""How the model of a retriever computes: in which dtype and with which backend.

Float32 by torch and by ONNX Runtime are equal to 1e-5 and the half precisions nearly so, so an index does not store
them. Vectors in int8 differ: an index that was filled in int8 stores it, and its queries are encoded in int8 as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from latelier.errors import InvalidArgumentError

__all__ = ["INT8", "Computation"]

# The option that an index stores.
INT8 = {"compute_dtype": "int8"}
_EQUAL_BACKENDS = (None, "torch", "onnx", "auto")


class Computation(NamedTuple):
    """The options of a model, divided into what computes and all others.

    Attributes
    ----------
    backend
        As in `latelier.models.ColBERT`; None for its default, or ONNX Runtime for int8.
    compute_dtype
        As in `latelier.models.ColBERT.encode`.
    others
        All other options, by name.

    Examples
    --------
    >>> given = {"backend": "auto", "compute_dtype": "int8", "dim": 64}
    >>> computation = Computation.of(given)
    >>> computation.loading_options, computation.identity_options
    ({'dim': 64, 'backend': 'auto'}, {'dim': 64, 'compute_dtype': 'int8'})
    >>> Computation.of({"compute_dtype": "int8"}).loading_options
    {'backend': 'onnx'}
    """

    backend: str | None
    compute_dtype: str
    others: dict[str, Any]

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Computation:
        """Divide the options that a model is given by a user, or by an index."""
        others = dict(options)
        backend, compute_dtype = others.pop("backend", None), others.pop("compute_dtype", "auto")
        return cls("onnx" if backend is None and compute_dtype == "int8" else backend, compute_dtype, others)

    @property
    def loading_options(self) -> dict[str, Any]:
        """The options to load the model with."""
        return self.others if self.backend is None else {**self.others, "backend": self.backend}

    @property
    def identity_options(self) -> dict[str, Any]:
        """The options that say which vectors the model makes."""
        options = {**self.others, **(INT8 if self.compute_dtype == "int8" else {})}
        return options if self.backend in _EQUAL_BACKENDS else {**options, "backend": self.backend}

    def check_stored(self, stored: Mapping[str, Any]) -> None:
        """Check that this does not ask for int8 where an index was filled without, or the reverse.

        Parameters
        ----------
        stored
            The options that the index stores.

        Raises
        ------
        InvalidArgumentError
            If it does.
        """
        is_int8 = stored.get("compute_dtype") == "int8"
        if self.compute_dtype != "auto" and (self.compute_dtype == "int8") != is_int8:
            filled = "in int8" if is_int8 else "in another dtype than int8"
            raise InvalidArgumentError(
                f"received compute_dtype={self.compute_dtype!r}, but the index was filled {filled}; omit it, or make "
                "a new index."
            )
