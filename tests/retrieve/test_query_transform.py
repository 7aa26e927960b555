"""The change of queries of a model without training: by the formula, stored with the index, and turned off."""

import numpy as np
import pytest

from latelier import indexes
from latelier.errors import IndexFormatError
from latelier.losses import Contrastive
from latelier.models import load
from latelier.retrieve import Retriever

TEXTS = ["Bananas are healthy.", "The moon is far away.", "Seven kings of old."]
QUERY = "unhealthy fruit"


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def naive(retriever, context=0.25, centre=1.0):
    """Scores of all documents by the formula, from the model's own vectors."""
    query = np.asarray(retriever.model.encode_query(QUERY))
    stored = [np.asarray(retriever.model.encode_document(text)) for text in TEXTS]
    tokens = np.concatenate(stored)
    share = centre * len(tokens) / (len(tokens) + 5000)
    changed = unit(query + context * unit(query.sum(axis=0))) - share * tokens.mean(axis=0)
    return [float((changed @ document.T).max(axis=1).sum()) for document in stored]


@pytest.mark.parametrize("kind", [indexes.Flat, indexes.IVF])
def test_scores_are_those_of_the_changed_query(shallow, tmp_path, kind):
    with Retriever(shallow, kind(tmp_path / "index"), device="cpu") as retriever:
        retriever.add(TEXTS)
        found = {each.id: each.score for each in retriever.search(QUERY, mode="vectors")}
    tolerance = 1e-4 if kind is indexes.Flat else 0.05
    with Retriever.open(tmp_path / "index", device="cpu") as opened:
        assert [found[i] for i in range(3)] == pytest.approx(naive(opened), abs=tolerance)
        assert opened.explain(QUERY, 0).score == pytest.approx(found[0], abs=1e-4)
        plain = {each.id: each.score for each in opened.search(QUERY, mode="vectors", plain_query=True)}
        assert [plain[i] for i in range(3)] == pytest.approx(naive(opened, 0.0, 0.0), abs=tolerance)
        means = [opened.search(QUERY, mode="vectors", min_mean_score=-1, plain_query=each) for each in (True, False)]
        by_id = [{each.id: each.mean_score for each in results} for results in means]
        assert by_id[0] == pytest.approx(by_id[1], abs=1e-5)  # those of the query itself
        opened.index.settings["query_transform"] = {"name": "unknown"}
        with pytest.raises(IndexFormatError, match="plain_query=True"):
            opened.search(QUERY)


def test_a_model_in_training_keeps_its_queries(shallow):
    model = load(shallow, device="cpu")
    assert model.is_untrained
    Contrastive(model)
    retriever = Retriever(model)
    retriever.add(TEXTS)
    assert "query_transform" not in retriever.index.settings
