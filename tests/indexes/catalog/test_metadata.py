"""How deeply metadata may be nested."""

import numpy as np
import pytest

from latelier import indexes
from latelier.errors import InvalidArgumentError
from latelier.indexes.store import rows

VECTORS = np.ones((1, 4), dtype="float32")
REFUSED = (
    "the metadata of document 'deep' is nested too deeply: lists and dicts may be nested 100 levels deep; flatten it, "
    "or store the inner levels as a JSON text"
)


def nested(levels, kind):
    """Metadata of so many levels, itself included."""
    value = 1
    for _ in range(levels - 1):
        value = [value] if kind is list else {"inner": value}
    return {"outer": value}


@pytest.mark.parametrize("kind", [list, dict])
def test_metadata_has_at_most_100_levels(kind):
    index = indexes.Flat()
    index.add("fine", VECTORS, metadata=nested(100, kind))
    assert index.get("fine").metadata == nested(100, kind)
    for levels in (101, 300, 100_000):
        with pytest.raises(InvalidArgumentError, match=REFUSED):
            index.add("deep", VECTORS, metadata=nested(levels, kind))
    assert index.ids() == ["fine"]


def test_deeper_metadata_that_an_older_version_has_stored_is_read(tmp_path, monkeypatch):
    with monkeypatch.context() as older, indexes.Flat(tmp_path / "index") as index:
        older.setattr(rows, "_MOST_LEVELS", 400)
        index.add("deep", VECTORS, metadata=nested(300, list))
    with indexes.open(tmp_path / "index") as index:
        assert index.get("deep").metadata == nested(300, list)
        assert index.verify().is_whole
        index.add("next", VECTORS)
        assert index.ids() == ["deep", "next"]


def test_settings_have_no_such_limit():
    index = indexes.Flat()
    index.settings["deep"] = nested(200, dict)
    assert index.settings["deep"] == nested(200, dict)
