"""Calls written for sentence-transformers and PyLate mean the same here, or raise an error naming the argument."""

import inspect

import pytest
import torch
from sentence_transformers import MultiVectorEncoder

from latelier import scores
from latelier.embeddings import TokenEmbeddings
from latelier.models import ColBERT

TEXTS = ["Fruits are healthy!", "A pear."]
GROUPS = [["Fruits are healthy!", "A pear."], [], ["two figs", "a plum", ""]]


@pytest.fixture(scope="module")
def plain(shallow, tmp_path_factory):
    """The same weights and recipe in our class and in theirs."""
    folder = tmp_path_factory.mktemp("models") / "ours"
    ColBERT(shallow, embedding_size=16, device="cpu").save(folder)
    return MultiVectorEncoder(str(folder), device="cpu")


def assert_same(left, right):
    if isinstance(left, torch.Tensor):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=2e-6)
    elif isinstance(left, list):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    else:
        assert left == right


CALLS = {
    "query": lambda model: model.encode_query(TEXTS),
    "documents by position": lambda model: model.encode_document(TEXTS, None, None, 1, False, "token_embeddings"),
    "encode by position": lambda model: model.encode(
        TEXTS, "document", None, 1, False, "token_embeddings", False, None, False, None, None, None, "document"
    ),
    "inputs": lambda model: model.encode(inputs=TEXTS, task="query", prompt_name="query"),
    "pairs": lambda model: model.encode([("a fig", "a pear"), ("a", "b")], task="document", prompt=""),
    "one text": lambda model: model.encode_document("a pear"),
    "tuple": lambda model: model.encode_document(tuple(TEXTS)),
    "processing": lambda model: model.encode_document(TEXTS, processing_kwargs={"text": {"max_length": 5}}),
    "normalised": lambda model: model.encode_query(TEXTS, normalize_embeddings=True),
    "similarity": lambda model: model.similarity(model.encode_query(TEXTS), model.encode_document(TEXTS)),
    "pairwise": lambda model: model.similarity_pairwise(model.encode_query(TEXTS), model.encode_document(TEXTS)),
    "max_length": lambda model: model.preprocess(TEXTS, prompt="[D] ", task="document", max_length=5)["input_ids"],
    "forward": lambda model: model(model.preprocess(TEXTS, prompt="[Q] ", task="query"), task="query")[
        "token_embeddings"
    ],
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_of_sentence_transformers_give_what_they_give_there(fresh, plain, call):
    assert_same(CALLS[call](fresh), CALLS[call](plain))


@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document", "preprocess", "similarity"])
def test_arguments_stand_where_sentence_transformers_has_them(method):
    theirs = list(inspect.signature(getattr(MultiVectorEncoder, method)).parameters)[2:]
    ours = inspect.signature(getattr(ColBERT, method)).parameters
    assert list(ours)[2 : len(theirs) + 1] == [name for name in theirs if name != "kwargs"]


@pytest.mark.parametrize("precision", [None, "int8"])
def test_similarity_of_packed_embeddings(fresh, precision):
    queries = fresh.encode_query(TEXTS, packed=True)
    documents = fresh.encode_document(TEXTS, packed=True, precision=precision)
    expected = scores.colbert_scores(queries, documents)
    assert_same(fresh.similarity(queries, documents), expected)
    assert_same(fresh.similarity(queries.to("numpy"), documents.to("numpy")), expected)
    assert_same(fresh.similarity(list(queries), documents), expected)
    assert_same(fresh.similarity_pairwise(queries, documents), expected.diagonal())
    if precision is None:  # int8 documents are multiplied as int8 above, and dequantised with options
        mean = expected / torch.from_numpy(queries.lengths)[:, None]
        assert_same(fresh.similarity(queries, documents, length_normalize=True), mean)


@pytest.mark.parametrize("task", ["query", "document"])
def test_tokenize_in_every_spelling(fresh, task):
    expected = fresh.preprocess(TEXTS, task=task)["input_ids"]
    is_query = task == "query"
    for features in (
        fresh.tokenize(TEXTS, task=task),
        fresh.tokenize(TEXTS, is_query),
        fresh.tokenize(texts=TEXTS, is_query=is_query),
        fresh.tokenize(TEXTS, query_mode=is_query, task=task),
    ):
        assert features["task"] == task
        torch.testing.assert_close(features["input_ids"], expected)
    torch.testing.assert_close(fresh.tokenize("A pear.", task=task)["input_ids"], expected[1:, : 32 if is_query else 6])


def test_forward_in_every_spelling(fresh):
    expected = fresh(texts=TEXTS, query_mode=False)["embeddings"]
    for options in ({"is_query": False}, {"task": "document"}, {"query_mode": False, "task": "document"}):
        torch.testing.assert_close(fresh(texts=TEXTS, **options)["embeddings"], expected)


@pytest.mark.parametrize("task", ["query", "document"])
def test_queries_and_documents_in_every_spelling(fresh, task):
    encode, is_query = getattr(fresh, f"encode_{task}"), task == "query"
    expected = fresh.encode(TEXTS, task=task)
    for name in ("inputs", "texts", "sentences"):
        assert_same(encode(**{name: TEXTS}), expected)
    for flag in ({"task": task}, {"is_query": is_query}, {"query_mode": is_query}):
        assert_same(encode(TEXTS, **flag), expected)
    assert fresh.encode_document(sentences=[]) == []


@pytest.mark.parametrize("options", [{}, {"pool_factor": 2}, {"convert_to_numpy": True}, {"precision": "float16"}])
def test_groups_come_back_as_groups(fresh, options):
    encoded = fresh.encode(GROUPS, is_query=False, **options)
    assert [len(group) for group in encoded] == [2, 0, 3]
    flat = fresh.encode([text for group in GROUPS for text in group], is_query=False, **options)
    assert all((a == b).all() for a, b in zip([m for group in encoded for m in group], flat, strict=True))
    assert type(encoded[0][0]) is type(flat[0])


def test_groups_in_other_forms(fresh):
    packed = fresh.encode(GROUPS, is_query=False, packed=True)
    assert [(type(group), len(group)) for group in packed] == [(TokenEmbeddings, n) for n in (2, 0, 3)]
    assert_same(list(packed[2]), fresh.encode_document(GROUPS[2]))
    assert [len(group) for group in fresh.encode(GROUPS, output_value=None)] == [2, 0, 3]
    assert fresh.encode([[], []]) == [[], []]
    assert_same(fresh.encode_query([["a pear"]]), [[fresh.encode_query("a pear")]])


def test_names_of_other_libraries(fresh):
    expected = fresh.encode(TEXTS)
    assert_same(fresh.encode(sentences=TEXTS), expected)
    assert_same(fresh.encode(TEXTS, convert_to_tensor=True), expected)
    both = fresh.encode(TEXTS, convert_to_numpy=True, convert_to_tensor=True)
    assert_same(both, expected)
    assert all(isinstance(matrix, torch.Tensor) for matrix in both)
