"""`CollectionSettings`: the JSON values that users and tools store in an index, in the metadata of its collection."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from typing import Any

from latelier.indexes.catalog.values import as_key, encode_json
from latelier.indexes.qdrant.collection import QdrantCollection

__all__ = ["CollectionSettings"]


class CollectionSettings(MutableMapping[str, Any]):
    """JSON values by name, read from Qdrant at each access and written to it at each assignment.

    Examples
    --------
    >>> from latelier import indexes
    >>> index = indexes.Qdrant()
    >>> index.settings["model"] = {"name": "my-colbert"}
    >>> index.settings["model"]["name"], index.settings.get("language")
    ('my-colbert', None)
    """

    def __init__(self, collection: QdrantCollection) -> None:
        self._collection = collection

    def __getitem__(self, name: str) -> Any:
        return json.loads(self._collection.settings()[name])

    def __setitem__(self, name: str, value: Any) -> None:
        what = f"the setting {name!r}"
        self._collection.write_setting(as_key(name, what), encode_json(value, what))

    def __delitem__(self, name: str) -> None:
        if name not in self._collection.settings():
            raise KeyError(name)
        self._collection.write_setting(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._collection.settings())

    def __len__(self) -> int:
        return len(self._collection.settings())

    def __repr__(self) -> str:
        return f"CollectionSettings({dict(self)})"
