"""What `help()` and editors show of methods with options, and the answer to an option of another library."""

import inspect

import numpy as np
import pytest

from latelier import Retriever
from latelier.errors import InvalidArgumentError
from latelier.indexes import Flat


def defaults(function):
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


@pytest.mark.parametrize("function", [Retriever.search, Retriever.run, Retriever.why_not, Flat.search, Flat.why_not])
def test_a_search_shows_its_options(function):
    shown = defaults(function)
    assert (shown["mode"], shown["weights"], shown["filter_timeout"]) == ("vectors", (0.85, 0.15), 10.0)
    assert "options" not in inspect.signature(function).parameters


@pytest.mark.parametrize("function", [Retriever.add, Retriever.update, Retriever.synchronise])
def test_a_write_shows_its_options(function):
    shown = defaults(function)
    assert (shown["batch_size"], shown["passages"]) == (32, None)


def test_options_of_other_libraries_are_answered_with_ours():
    index = Flat()
    index.add("a", np.eye(2))
    for name, ours in (("top_k", "k"), ("n_results", "k"), ("limit", "k"), ("filters", "filter"), ("modes", "mode")):
        with pytest.raises(InvalidArgumentError, match=f"no option '{name}'.* Did you mean '{ours}'"):
            index.search(np.eye(2), **{name: 1})
