"""`RerankingModel`: the model of a reranker of another framework, loaded when it is needed."""

from __future__ import annotations

import threading
from typing import Any

from latelier.retrieve.opening import given_model
from latelier.retrieve.query_model import QueryModel

__all__ = ["RerankingModel"]


class RerankingModel:
    """What a user gives as the model of a reranker. A copy loads its own, also one of `pickle`.

    Parameters
    ----------
    model, device, options
        As for `latelier.retrieve.opening.given_model`.

    Examples
    --------
    >>> import copy
    >>> model = RerankingModel("all-MiniLM-L6-v2", "cpu", None)
    >>> copy.deepcopy(model).loaded is model.loaded
    False
    """

    def __init__(self, model: Any, device: str | None, options: dict[str, Any] | None) -> None:
        self._given = model, device, options
        self._lock = threading.Lock()
        self._loaded: QueryModel | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RerankingModel, self._given

    @property
    def loaded(self) -> QueryModel:
        """The model, loaded on first use; errors are those of `latelier.retrieve.opening.given_model`."""
        with self._lock:
            if self._loaded is None:
                self._loaded = given_model(*self._given)
            return self._loaded
