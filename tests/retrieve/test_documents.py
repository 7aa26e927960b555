"""What a retriever takes as documents, and how it names the ones that it does not take."""

import numpy as np
import pytest

from latelier.errors import InvalidArgumentError
from latelier.retrieve import Retriever


@pytest.mark.parametrize(
    ("item", "document"),
    [
        ("a text", (0, "a text", {})),
        (("a", "text"), ("a", "text", {})),
        ((np.int64(7), "text"), (7, "text", {})),
        ({"id": "a", "text": "x", "year": 2020}, ("a", "x", {"year": 2020})),
        ({"_id": "a", "title": "T", "text": "x"}, ("a", "T x", {})),
        ({"_id": "a", "title": "T", "text": ""}, ("a", "T", {})),
        ({"id": 1, "text": "x", "metadata": {"a": 1}, "b": None}, (1, "x", {"a": 1, "b": None})),
        # A title is left out only if the text begins with it as a whole heading.
        ({"text": "\n## Go ##\r\nA language.", "title": "Go"}, (0, "\n## Go ##\r\nA language.", {})),
        ({"text": "Go\n==\nA language.", "title": "Go"}, (0, "Go\n==\nA language.", {})),
        ({"text": "# Good things", "title": "Go"}, (0, "Go # Good things", {})),
        ({"text": "Go\n= 1", "title": "Go"}, (0, "Go Go\n= 1", {})),
    ],
)
def test_forms_of_documents(small, item, document):
    retriever = Retriever(small)
    retriever.add([item])
    [record] = retriever.index.get(retriever.index.ids())
    assert (record.id, record.text, record.metadata) == document


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (5, "received 5 .int.; expected a text"),
        ("  \n", "the text is empty"),
        ("broken \ud800", "the text is not valid Unicode"),
        ({"id": "a", "body": "x"}, "it has no 'text'; its keys are 'id', 'body'"),
        ({"id": "a", "_id": "b", "text": "x"}, "it has both 'id' 'a' and '_id' 'b'"),
        (("", "x"), "'' .* as an id"),
        ({"id": "a", "text": "x", "metadata": [1]}, "it has metadata of type list"),
        ({"text": "x", "tags": {"a"}}, "document 2 cannot be stored as JSON"),
    ],
)
def test_invalid_documents_are_named_by_their_position(shared_retriever, item, message):
    with pytest.raises(InvalidArgumentError, match=rf"documents\[2\]: .*{message}") as raised:
        shared_retriever.add(["fine", "fine too", item])
    assert len(str(raised.value)) < 500
    assert len(shared_retriever) == 4


@pytest.mark.parametrize("documents", ["a text", {"a": "text"}, None])
def test_what_is_no_iterable_of_documents(shared_retriever, documents):
    for call in (shared_retriever.add, shared_retriever.update):
        with pytest.raises(InvalidArgumentError, match=f"documents of type {type(documents).__name__}"):
            call(documents)
