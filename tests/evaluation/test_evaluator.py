"""The evaluator inside a real training run: its numbers are those of `evaluate`, and choose the best checkpoint."""

import csv
import tempfile
from functools import partial

import pytest

from latelier.errors import InvalidArgumentError, StorageError
from latelier.evaluation import Collection, RetrievalEvaluator, evaluate
from latelier.indexes import IVF, Flat
from latelier.losses import Contrastive
from latelier.models import ColBERT
from latelier.retrieve import Retriever

PAIRS = [
    ("unhealthy fruit", "Bananas are healthy."),
    ("a German city", "Berlin is the capital of Germany."),
    ("recipes for noodles", "How to cook spaghetti."),
    ("distance of stars", "The moon is far away from the earth."),
    ("flying cheaply", "A low fare to Italy, by plane."),
    ("sleeping on rails", "The night train from Vienna."),
]
COLLECTION = Collection(
    documents={f"d{i}": {"title": f"Page {i}", "text": text} for i, (_, text) in enumerate(PAIRS)},
    queries={f"q{i}": query for i, (query, _) in enumerate(PAIRS)} | {"unjudged": "weather"},
    qrels={f"q{i}": {f"d{i}": 1} for i in range(len(PAIRS))},
)
MEASURES = ["nDCG@10", "RR@10", "Success@1"]


@pytest.fixture(scope="module")
def model(tiny):
    return ColBERT.from_dense(tiny, device="cpu")


@pytest.mark.parametrize("index", [Flat, IVF, partial(IVF, nbits=2)], ids=["flat", "ivf", "ivf 2 bits"])
def test_numbers_are_those_of_a_retriever_over_the_same_index(model, tmp_path, monkeypatch, index):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    evaluator = RetrievalEvaluator(COLLECTION, MEASURES, index=index, name="toy")
    metrics = evaluator(model)
    assert list(tmp_path.iterdir()) == []
    with Retriever(model, index(tmp_path / "own")) as retriever:
        retriever.add(COLLECTION.texts().items())
        run = retriever.run({q: COLLECTION.queries[q] for q in COLLECTION.qrels}, mode="vectors")
    expected = evaluate(run, COLLECTION.qrels, MEASURES)
    assert metrics == {f"toy_{name}": value for name, value in expected.items()}
    assert evaluator.evaluation.per_query == expected.per_query
    assert {query: list(found) for query, found in evaluator.run.items()} == {q: list(f) for q, f in run.items()}
    assert 0 < metrics["toy_nDCG@10"] < 1
    used = evaluator.evaluation.settings
    assert used.keys() - {"effort"} == run.settings.keys() - {"effort"}
    assert {name: used[name] for name in ("index", "bits", "queries", "documents", "queries_cut", "documents_cut")} == {
        name: run.settings[name] for name in ("index", "bits", "queries", "documents", "queries_cut", "documents_cut")
    }


def test_search_options_reach_the_index(model):
    evaluator = RetrievalEvaluator(COLLECTION, MEASURES, index=IVF, search_options={"efort": 2.0})
    with pytest.raises(InvalidArgumentError, match="efort"):
        evaluator(model)
    settings = RetrievalEvaluator(COLLECTION, index=partial(IVF, nbits=2), search_options={"effort": 2.0}, k=7)
    assert settings.get_config_dict() == {"index": "IVF", "nbits": 2, "effort": 2.0, "k": 7}


def test_in_a_trainer_it_chooses_the_best_checkpoint(tiny, tmp_path):
    pytest.importorskip("datasets")
    from datasets import Dataset
    from sentence_transformers import MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments

    model = ColBERT.from_dense(tiny, device="cpu")
    evaluator = RetrievalEvaluator(COLLECTION, MEASURES, index=IVF, name="toy")
    before = evaluator(model)
    arguments = MultiVectorEncoderTrainingArguments(
        output_dir=str(tmp_path),
        max_steps=6,
        per_device_train_batch_size=6,
        learning_rate=2e-3,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model=f"eval_{evaluator.primary_metric}",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    rows = Dataset.from_dict({"query": [q for q, _ in PAIRS], "positive": [d for _, d in PAIRS]})
    trainer = MultiVectorEncoderTrainer(
        model=model, args=arguments, train_dataset=rows, loss=Contrastive(model), evaluator=evaluator
    )
    trainer.train()
    logged = [row["eval_toy_nDCG@10"] for row in trainer.state.log_history if "eval_toy_nDCG@10" in row]
    assert len(logged) == 3
    assert max(logged) > before["toy_nDCG@10"]
    assert trainer.state.best_metric == max(logged)
    assert evaluator(model)["toy_nDCG@10"] == pytest.approx(max(logged))  # the best checkpoint was loaded
    with next(tmp_path.rglob("Retrieval_evaluation_toy_results.csv")).open() as file:
        written = list(csv.DictReader(file))
    assert [int(row["steps"]) for row in written] == [2, 4, 6]
    assert [float(row["nDCG@10"]) for row in written] == logged
    assert "toy_nDCG@10" in str(model.model_card_data.eval_results_dict[evaluator])


def test_a_csv_file_that_cannot_be_written(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        RetrievalEvaluator(COLLECTION, MEASURES)(model, str(tmp_path / "file"))
