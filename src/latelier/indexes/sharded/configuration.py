"""`Configuration`: what a sharded index is made of, as given by users and as its catalog stores it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from latelier.errors import IndexFormatError, InvalidArgumentError
from latelier.indexes.flat import Flat
from latelier.indexes.ivf import IVF
from latelier.indexes.ivf.layout import BITS
from latelier.indexes.sharded.commit_record import MOST_SHARDS, CommitRecord
from latelier.indexes.sharded.shard import KINDS
from latelier.indexes.store.keywords import TOKENIZERS
from latelier.utils.checks import check_choice, check_count, describe

__all__ = ["Configuration"]

_DTYPES = ("float32", "float16")
_SHARDS, _REPLICAS = 2, 1


class Configuration(NamedTuple):
    """What a sharded index is made of.

    `shard_kind`: ``"ivf"`` or ``"flat"``. `nbits`, `dtype`: the number format of the shards: one of both, according to
    their kind. `tokenizer`: that of the keyword index of a new index; None: it has none. `shards`, `replicas`, `nodes`:
    as the index was made; the commit record holds what it has now.
    """

    shard_kind: str
    nbits: int | None
    dtype: str | None
    tokenizer: str | None
    shards: int
    replicas: int
    nodes: tuple[str, ...] | None

    @classmethod
    def checked(
        cls,
        shards: object,
        replicas: object,
        index: object,
        nbits: object,
        dtype: object,
        nodes: object,
        tokenizer: str | None,
    ) -> Configuration:
        """Check the arguments of users, and return the configuration of a new index.

        Raises `InvalidArgumentError` if one is not accepted.

        Examples
        --------
        >>> Configuration.checked(4, None, "ivf", None, None, None, "porter").nbits
        8
        """
        count = check_count("shards", _SHARDS if shards is None else shards, most=MOST_SHARDS)
        copies = check_count("replicas", _REPLICAS if replicas is None else replicas, most=MOST_SHARDS)
        kind = IVF.kind if index is None else index
        check_choice("index", kind, KINDS)
        check_choice("nbits", nbits, BITS, optional=True)
        check_choice("dtype", dtype, _DTYPES, optional=True)
        names = _check_nodes(nodes, copies)
        if kind == IVF.kind and dtype is not None:
            raise InvalidArgumentError(f"received dtype={dtype!r}, which is for index='flat'; leave it out.")
        if kind == Flat.kind and nbits is not None:
            raise InvalidArgumentError(f"received nbits={nbits!r}, which is for index='ivf'; leave it out.")
        if kind == IVF.kind:
            return cls(kind, int(nbits or 8), None, tokenizer, count, copies, names)  # type: ignore[call-overload]
        return cls(str(kind), None, str(dtype or "float32"), tokenizer, count, copies, names)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Configuration:
        """Return the configuration in a catalog.

        Raises `IndexFormatError` if it holds values that this version does not know.
        """
        try:
            found = cls(**{name: stored[name] for name in cls._fields})
            check_choice("tokenizer", found.tokenizer, TOKENIZERS, optional=True)
            own = (
                found.shards,
                found.replicas,
                found.shard_kind,
                found.nbits,
                found.dtype,
                found.nodes,
                found.tokenizer,
            )
            return cls.checked(*own)
        except (KeyError, TypeError, InvalidArgumentError) as error:
            raise IndexFormatError(f"the configuration of this sharded index is not known: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as JSON values."""
        return self._asdict() | {"nodes": self.nodes and list(self.nodes)}

    def check_equal(
        self, path: Path, shards: object, replicas: object, index: object, nbits: object, dtype: object
    ) -> None:
        """Check that what a user gives for an existing index is what it has."""
        given = {"shards": shards, "replicas": replicas, "index": index, "nbits": nbits, "dtype": dtype}
        for name, value in given.items():
            stored = self.shard_kind if name == "index" else getattr(self, name)
            if value is not None and value != stored:
                raise InvalidArgumentError(
                    f"received {name}={value!r}, but the index in {path} has {stored!r}; leave {name} out, or make a "
                    "new index."
                )

    def initial_record(self) -> CommitRecord:
        """Return the commit record of the index without a commit."""
        return CommitRecord(("",) * self.shards, self.replicas, self.nodes)

    def options(self) -> dict[str, Any]:
        """Return the options with which a shard is made."""
        numbers = {"nbits": self.nbits} if self.shard_kind == IVF.kind else {"dtype": self.dtype}
        return {**numbers, "keywords": self.tokenizer is not None, "tokenizer": self.tokenizer}

    @property
    def class_name(self) -> str:
        """The name of the class of the shards."""
        return KINDS[self.shard_kind].__name__

    def describe_numbers(self) -> str:
        """Return the number format in words."""
        return f"{self.nbits}-bit" if self.shard_kind == IVF.kind else str(self.dtype)


def _check_nodes(nodes: object, replicas: int) -> tuple[str, ...] | None:
    if nodes is None:
        return None
    is_list = isinstance(nodes, (list, tuple)) and nodes and all(isinstance(each, str) and each for each in nodes)
    if not is_list:
        raise InvalidArgumentError(
            f"received {describe(nodes)} as nodes; expected a list of IP addresses of Ray nodes, or of resources."
        )
    if len(set(nodes)) < min(replicas, 2):  # type: ignore[call-overload]
        raise InvalidArgumentError("received one node for several replicas; give a node for each, or leave nodes out.")
    return tuple(nodes)  # type: ignore[arg-type]
