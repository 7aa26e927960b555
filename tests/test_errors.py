"""Errors: what they say in Python, and what other surfaces make of their advice."""

import pickle
from typing import get_args

import pytest

from latelier import errors
from latelier.cli import output
from latelier.errors import Advice, LatelierError, UnknownIdError


def test_advice_is_worded_by_each_surface():
    error = UnknownIdError("no document has the id 7.", advice="known-ids")
    assert str(error).startswith("no document has the id 7. retriever.documents, or index.ids(), lists those")
    assert error.worded({"known-ids": "Search shows them."}) == "no document has the id 7. Search shows them."
    assert error.worded({"update": "PUT replaces documents."}) == str(error)
    assert error.fact == "no document has the id 7."


@pytest.mark.parametrize("advice", get_args(Advice))
def test_python_and_the_command_line_have_words_for_every_advice(advice):
    assert str(LatelierError("A fact.", advice=advice)).startswith("A fact. ")
    assert "=" not in output._ADVICE[advice].replace("NAME=INDEX", "")  # no keyword of Python


@pytest.mark.parametrize("kind", [kind for kind in vars(errors).values() if isinstance(kind, type)], ids=str)
def test_errors_keep_their_advice_between_processes(kind):
    if not issubclass(kind, LatelierError) or kind in (errors.ModelLoadError, errors.MissingExtraError):
        pytest.skip("no error, or one with arguments of its own")
    again = pickle.loads(pickle.dumps(kind("a fact.", advice="known-ids")))
    assert (type(again), again.fact, again.advice) == (kind, "a fact.", "known-ids")
