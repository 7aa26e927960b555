"""What `help()` and editors show of methods with options, and the answer to an option of another library."""

import inspect

import numpy as np
import pytest

from latelier import Retriever
from latelier.errors import InvalidArgumentError
from latelier.indexes import Flat
from latelier.retrieve.write_options import WRITE_OPTIONS, WriteKeywords


def defaults(function):
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


@pytest.mark.parametrize("function", [Retriever.search, Retriever.run, Retriever.why_not, Flat.search, Flat.why_not])
def test_a_search_shows_its_options(function):
    shown = defaults(function)
    assert (shown["mode"], shown["weights"], shown["filter_timeout"]) == (None, (0.85, 0.15), 10.0)
    assert "options" not in inspect.signature(function).parameters


@pytest.mark.parametrize("function", [Retriever.add, Retriever.update, Retriever.synchronise])
def test_a_write_shows_its_options(function):
    shown = defaults(function)
    assert (shown["batch_size"], shown["passages"]) == (32, None)
    assert (
        list(WriteKeywords.__annotations__) == list(WRITE_OPTIONS) == [name for name in shown if name in WRITE_OPTIONS]
    )


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"batchsize": 3}, "no option 'batchsize'.* Did you mean 'batch_size'"),
        ({"batch_size": 0}, "batch_size"),
        ({"pool_factor": 0}, "pool_factor"),
        ({"precision": "float8"}, "precision"),
    ],
)
def test_wrong_options_of_a_write_are_refused_before_anything_is_read(options, fact, tiny, tmp_path):
    (tmp_path / "a.txt").write_text("A pear.", encoding="utf-8")
    retriever = Retriever(tiny, index=Flat())
    for write in (retriever.add, retriever.update, retriever.synchronise):
        with pytest.raises(InvalidArgumentError, match=fact):
            write(str(tmp_path), **options)
    with pytest.raises(InvalidArgumentError, match="skip_existing=True has no effect on a path"):
        retriever.add(str(tmp_path), skip_existing=True)
    assert len(retriever) == 0


def test_only_what_users_call_is_shown():
    shown = {name for name in dir(Flat()) if not name.startswith("_")}
    assert {"add", "search", "get", "settings", "compact"} <= shown
    assert shown.isdisjoint({"find", "find_loss", "checked_options", "write", "origins", "existing", "working_memory"})
    assert "DeferredModel" not in str(inspect.signature(Retriever))


def test_options_of_other_libraries_are_answered_with_ours():
    index = Flat()
    index.add("a", np.eye(2))
    for name, ours in (("top_k", "k"), ("n_results", "k"), ("limit", "k"), ("filters", "filter"), ("modes", "mode")):
        with pytest.raises(InvalidArgumentError, match=f"no option '{name}'.* Did you mean '{ours}'"):
            index.search(np.eye(2), **{name: 1})
