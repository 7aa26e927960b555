"""An index of format 1 is read and written as it is, and upgraded by compact."""

import sqlite3
import tarfile
from pathlib import Path

import pytest
from index_helpers import contents, matrices
from index_tampering import change

from latelier import indexes
from latelier.errors import (
    CorruptedIndexError,
    IndexFormatError,
)


@pytest.fixture(params=["flat", "ivf"])
def first_format(request, tmp_path):
    """An index made by the first version of the format, with a removed document."""
    with tarfile.open(Path(__file__).with_name("first_format.tar.gz")) as archive:
        archive.extractall(tmp_path)
    return tmp_path / request.param


def test_the_first_format_is_read_and_written_and_brought_up_to_date_by_compact(first_format):
    with indexes.open(first_format, read_only=True) as index:
        before = contents(index)
        assert index.ids() == ["a", "b", 3, "ß", "late"]
        assert index.get("a") == ("a", "one", {"year": 2001, "tags": ["x"]})
        assert [hit.id for hit in index.search(matrices([2]), filter="year = 2002")[0]] == ["b"]
        assert index.settings["model"] == {"name": "m"}
        assert index.verify().is_whole
    with indexes.open(first_format) as index:
        index.add("new", matrices([2])[0], texts="seven", metadata={"lang": "en", "year": 3})
        index.update("b", matrices([2])[0], texts="two again")
        index.remove("ß")
        index.settings["other"] = 2
        changed = contents(index)
        assert index.verify().is_whole
        version = "PRAGMA user_version"
        assert sqlite3.connect(first_format / "catalog.sqlite").execute(version).fetchone() == (1,)
        index.compact()
        assert contents(index) == changed != before
        assert sqlite3.connect(first_format / "catalog.sqlite").execute(version).fetchone() == (3,)
        assert index.verify().is_whole
        assert [hit.id for hit in index.search(matrices([2]), filter="lang IS NOT NULL", k=9)[0]] != []
        assert dict(index.settings) == {"model": {"name": "m"}, "other": 2}
    with indexes.open(first_format) as index:
        assert contents(index) == changed
        index.add("last", matrices([1])[0], metadata={"fresh": 1})
        index.compact()
        assert index.verify().is_whole
    change(first_format, "UPDATE content SET text = 'ONE' WHERE text = 'one'")
    with indexes.open(first_format) as index:
        assert index.verify().ids == ["a"]


def test_a_first_format_of_version_zero_is_none(first_format):
    change(first_format, "PRAGMA user_version = 0")
    with pytest.raises((CorruptedIndexError, IndexFormatError), match="its format version is 0"):
        indexes.open(first_format)


def test_a_damaged_first_format_is_not_upgraded_and_loses_nothing(first_format):
    change(first_format, "DELETE FROM content WHERE text = 'one'")
    with indexes.open(first_format) as index:
        before = index.ids()
        with pytest.raises(CorruptedIndexError, match=r"documents have no text and metadata: 'a'\. Remove these"):
            index.compact()
        assert index.ids() == before
        index.remove("a")
        index.compact()
        assert index.verify().is_whole
        assert index.ids() == before[1:]
