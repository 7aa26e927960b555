"""What a retriever is not to be given: every mistake is one of our errors, and says what is accepted."""

import copy
import pickle

import pytest

from latelier import indexes
from latelier.errors import InvalidArgumentError
from latelier.retrieve import Retriever


@pytest.fixture(scope="module")
def retriever(shared_retriever):
    """One retriever for all tests of this file: whatever they try leaves it as it was."""
    return shared_retriever


@pytest.mark.parametrize("texts", [None, 5, b"fruit", {"q": "fruit"}, object()])
def test_what_is_no_query(retriever, texts):
    with pytest.raises(InvalidArgumentError, match="as queries; expected a text"):
        retriever.search(texts)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("", r"queries\[0\] is ''; expected a text"),
        (["fruit", " \n"], r"queries\[1\] is ' \\n'"),
        ([None], r"queries\[0\] is None"),
        (["fruit", 5], r"queries\[1\] is 5"),
        ([["fruit"]], r"queries\[0\] is \['fruit'\]"),
        ("broken \ud800", r"queries\[0\] is not valid Unicode: '\\ud800' at position 7"),
        (["fruit", b"fruit"], r"queries\[1\] is b'fruit'"),
    ],
)
def test_what_is_no_list_of_queries(retriever, texts, message):
    with pytest.raises(InvalidArgumentError, match=message):
        retriever.search(texts)
    assert retriever.search(query for query in ["fruit"]) == retriever.search(["fruit"])


@pytest.mark.parametrize("value", [0, 10**30, None, "3", 1.5, True])
def test_numbers_that_are_no_counts(retriever, value):
    calls = {
        "k": [lambda: retriever.search("fruit", value), lambda: retriever.run({}, value)],
        "chunk_size": [lambda: retriever.add(["x"], chunk_size=value), lambda: retriever.update([], chunk_size=value)],
        "batch_size": [lambda: retriever.add(["x"], batch_size=value)],
    }
    for name, made in calls.items():
        for call in made:
            with pytest.raises(InvalidArgumentError, match=rf"received {name}=.*; expected an integer of at least 1"):
                call()
    assert len(retriever) == 4


@pytest.mark.parametrize("queries", [None, 5, "fruit", ["fruit"], b"x"])
def test_what_is_no_dict_of_queries(retriever, queries):
    with pytest.raises(InvalidArgumentError, match=r"as queries; expected a dict of id to text"):
        retriever.run(queries)


def test_models_indexes_and_options_of_other_types(model):
    for arguments, message in [
        ({"model": 5}, r"received 5 \(int\) as the model; expected a ColBERT or a name"),
        ({"model": model, "index": 5}, r"received 5 \(int\) as a path"),
        ({"model_options": ["a"]}, r"as model_options; expected a dict"),
        ({"model": model, "index": "a\ud800"}, r"received 'a\\ud800' \(str\) as a path"),
        ({"model": model, "index": "a\0b"}, r"received 'a\\x00b' \(str\) as a path"),
        ({"device": 10**5000}, r"unknown device a value"),
        ({"model_options": {"max_length_document": 10**5000}}, r"received max_length_document=a value; expected"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message):
            Retriever(**arguments)
    for value in (None, 5, b"index", "a\0b", 10**5000):
        with pytest.raises(InvalidArgumentError, match="as a path; give the folder of the index"):
            Retriever.open(value)
    for option, message in [({"filter": 10**5000}, "as a filter"), ({"filter_timeout": "soon"}, "give a number")]:
        with pytest.raises(InvalidArgumentError, match=message):
            Retriever(model).search("fruit", **option)


def test_options_that_the_index_does_not_have(retriever):
    for call in (lambda **given: retriever.search("fruit", **given), lambda **given: retriever.run({}, **given)):
        message = "a search of Flat has no option 'effort'; its options are mode, fusion"
        with pytest.raises(InvalidArgumentError, match=message):
            call(effort=2.0)


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.deepcopy])
def test_a_retriever_is_neither_pickled_nor_copied(retriever, duplicate):
    with pytest.raises(TypeError, match="Retriever cannot be copied or pickled"):
        duplicate(retriever)


def test_options_of_the_index_reach_its_search(model):
    approximate = Retriever(model, indexes.IVF())
    approximate.add(["Bananas are healthy.", "The moon is far away."])
    for options in ({"nprobe": 1, "candidates": 1, "rerank": 1}, {"effort": "exact"}):
        assert [hit.id for hit in approximate.search("fruit", 1, **options)] == [0]
        assert list(approximate.run({"q": "fruit"}, 1, **options)["q"]) == ["0"]
    for name in ("effort", "nprobe", "candidates", "rerank"):  # only the search itself knows which values are wrong
        with pytest.raises(InvalidArgumentError, match=f"received {name}=-1; expected"):
            approximate.search("fruit", **{name: -1})
        with pytest.raises(InvalidArgumentError, match=f"received {name}=-1; expected"):
            approximate.run({"q": "fruit"}, **{name: -1})
    with pytest.raises(InvalidArgumentError, match="no option 'slack'"):
        approximate.search("fruit", slack=3)


@pytest.mark.parametrize("backend", ["auto", "onnx", "torch"])
def test_a_loaded_model_is_not_for_open(retriever, tmp_path, backend):
    indexes.Flat(tmp_path / "index").close()
    for model in (retriever.model, 5):
        with pytest.raises(
            InvalidArgumentError, match=r"as the model to open .* loaded model: Retriever\(model, path\)"
        ):
            Retriever.open(tmp_path / "index", model=model, backend=backend)
