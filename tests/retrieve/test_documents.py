"""What a retriever takes as documents, and how it names the ones that it does not take."""

import numpy as np
import pytest

from latelier.errors import InvalidArgumentError
from latelier.retrieve.documents import InputDocument, parse_documents


@pytest.mark.parametrize(
    ("item", "document"),
    [
        ("a text", InputDocument(None, "a text", {})),
        (("a", "text"), InputDocument("a", "text", {})),
        ([7, "text"], InputDocument(7, "text", {})),
        ((np.int64(7), "text"), InputDocument(7, "text", {})),
        ({"text": "x"}, InputDocument(None, "x", {})),
        ({"id": "a", "text": "x", "year": 2020}, InputDocument("a", "x", {"year": 2020})),
        ({"_id": "a", "title": "T", "text": "x"}, InputDocument("a", "x", {}, "T")),
        ({"_id": "a", "title": "T", "text": ""}, InputDocument("a", "", {}, "T")),
        ({"_id": "a", "title": None, "text": "x"}, InputDocument("a", "x", {})),
        ({"_id": "a", "title": "", "text": " x "}, InputDocument("a", " x ", {})),
        ({"id": 1, "text": "x", "metadata": {"a": 1}, "b": None}, InputDocument(1, "x", {"a": 1, "b": None})),
        ({"id": 1, "text": "x", "metadata": None}, InputDocument(1, "x", {})),
        (InputDocument("a", "x", {"k": "v"}), InputDocument("a", "x", {"k": "v"})),
    ],
)
def test_forms_of_documents(item, document):
    assert list(parse_documents([item])) == [document]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (5, "received 5 .int.; expected a text"),
        (("a", "b", "c"), "received .* .tuple.; expected a text"),
        (None, "received None; expected a text"),
        ("  \n", "the text is empty: nothing to index"),
        (("a", ""), "the text of 'a' is empty: nothing to index"),
        (("a", None), "the text of 'a' is of type NoneType; expected str"),
        ({"id": "a", "title": "", "text": ""}, "the text of 'a' is empty"),
        ({"id": "a", "body": "x"}, "it has no 'text'; its keys are 'id', 'body'"),
        ({"id": "a", "_id": "b", "text": "x"}, "it has both 'id' 'a' and '_id' 'b'"),
        ({"id": True, "text": "x"}, "True .* as an id"),
        (("", "x"), "'' .* as an id"),
        ({"id": "a", "title": 3, "text": "x"}, "it has a title of type int"),
        ({"id": "a", "text": "x", "metadata": [1]}, "it has metadata of type list"),
        ({"id": "a", "text": "x", "metadata": {"year": 1}, "year": 2}, "it has the key 'year' both at the top and in"),
        ({"id": "a", "text": "x", "year": float("nan")}, "the metadata of document 'a' holds nan"),
        ({"text": "x", "tags": {"a"}}, "the metadata of document 2 holds"),
    ],
)
def test_invalid_documents_are_named_by_their_position(item, message):
    with pytest.raises(InvalidArgumentError, match=rf"documents\[2\]: .*{message}"):
        list(parse_documents(["fine", "fine too", item]))


@pytest.mark.parametrize(
    ("text", "is_heading"),
    [
        ("# Go", True),
        ("\n## Go ##\r\nA language.", True),
        ("Go\n==\nA language.", True),
        ("Go\r\n---", True),
        ("# Good things", False),
        ("# Go and C", False),
        ("Go\n= 1", False),
        ("Go is a language.", False),
    ],
)
def test_a_title_is_left_out_only_if_the_text_begins_with_it_as_a_whole_heading(text, is_heading):
    document = InputDocument("a", text, {}, "Go")
    assert document.with_title() == (text if is_heading else f"Go {text}".strip())


@pytest.mark.parametrize("documents", ["a text", b"bytes", {"a": "text"}, 5])
def test_what_is_no_iterable_of_documents(documents):
    with pytest.raises(InvalidArgumentError, match=f"received documents of type {type(documents).__name__}"):
        list(parse_documents(documents))


def test_documents_are_read_as_they_come():
    def endless():
        n = 0
        while True:
            n += 1
            yield f"text {n}"

    reading = parse_documents(endless())
    assert [next(reading).text for _ in range(3)] == ["text 1", "text 2", "text 3"]
