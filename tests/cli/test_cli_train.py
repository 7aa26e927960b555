"""``latelier train``: trains, validates, and saves a model that others load."""

import json

import pytest
import torch
from sentence_transformers import MultiVectorEncoder

from latelier.models import ColBERT

THINGS = [
    "apple", "bridge", "candle", "desk", "engine", "forest", "garden", "hammer", "island", "jacket", "kettle", "ladder",
    "mirror", "needle", "orange", "pencil", "quilt", "river", "saddle", "table", "urn", "violin", "window", "yacht",
]  # fmt: skip
PAIRS = [
    {"query": f"what is a {thing}?", "positive": f"A {thing} is a thing that people call {thing}."} for thing in THINGS
]


@pytest.fixture(scope="module")
def small(tmp_path_factory, shallow):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "small"
    ColBERT(shallow, 16, "cpu", max_length_query=16).save(folder)
    return folder


@pytest.fixture
def train(run, small, tmp_path):
    def train(rows, *options, model=small):
        file = tmp_path / "pairs.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return run("train", file, "--output", tmp_path / "out", "--model", model, "--device", "cpu", *options)

    return train


def test_pairs_with_mined_negatives(train, tmp_path, small):
    result = train(PAIRS, "--mine", 1, "--batch-size", 8, "--epochs", 4, "--learning-rate", 1e-3, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert (answer["rows"], answer["validation_queries"], answer["steps"]) == (22, 2, 12)
    assert set(answer["before"]) == set(answer["after"]) == {"success@1", "ndcg@10"}
    assert answer["after"]["ndcg@10"] >= answer["before"]["ndcg@10"] > 0
    assert len(answer["interval"]) == 2
    assert "Mined negatives for 22 rows." in result.stderr
    assert "step 12/12: validation: success@1" in result.stderr
    texts = ["what is a river?", "A river is a thing."]
    ours, theirs = (kind(str(tmp_path / "out"), device="cpu") for kind in (ColBERT, MultiVectorEncoder))
    before = ColBERT(str(small), device="cpu").encode_document(texts)
    for mine, other, old in zip(ours.encode_document(texts), theirs.encode_document(texts), before, strict=True):
        torch.testing.assert_close(mine, other)
        assert (mine - old).abs().max() > 1e-3
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "loss:Contrastive" in card
    assert "dataset_size:22" in card
    assert "from sentence_transformers import MultiVectorEncoder" in card
    assert f"maxsim_ndcg@10\n      value: {answer['after']['ndcg@10']}" in card


def test_rows_to_validate_on_from_a_file(train, tmp_path):
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PAIRS[:12]))
    result = train(PAIRS[10:], "--validation", tmp_path / "held.jsonl", "--epochs", 1)
    assert result.exit_code == 0, result.output
    assert "on 12 queries" in result.stdout
    assert "2 of their 12 positives were trained on as well" in result.stdout


def test_large_batches_go_in_mini_batches(train, tmp_path):
    result = train(PAIRS[:12], "--batch-size", 64, "--epochs", 1, "--validation-queries", 0)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [f"{tmp_path / 'out'}: trained on 12 rows, 1 steps."]
    assert "loss:CachedContrastive" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("scale", "normalize"), [(1, True), (10, False)])
def test_scores_are_distilled(train, tmp_path, scale, normalize):
    rows = [
        {"query": pair["query"], "documents": [pair["positive"], "A thing.", "Nothing."], "scores": [scale, 0.1, 0]}
        for pair in PAIRS
    ]
    assert train(rows).exit_code == 0
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "loss:Distillation" in card
    assert f'"normalize_scores": {str(normalize).lower()}' in card


def test_tables_of_ids_with_their_texts(run, small, tmp_path):
    (tmp_path / "qidpidtriples.tsv").write_text("".join(f"{i}\t{i}\t{i + 1}\n" for i in range(12)))
    (tmp_path / "queries.tsv").write_text("".join(f"{i}\t{PAIRS[i]['query']}\n" for i in range(12)))
    (tmp_path / "collection.tsv").write_text("".join(f"{i}\t{PAIRS[i]['positive']}\n" for i in range(13)))
    command = ["train", tmp_path / "qidpidtriples.tsv", "--output", tmp_path / "out", "--model", small, "--epochs", 1]
    refused = run(*command)
    assert refused.exit_code == 1
    assert "qidpidtriples.tsv:1 holds ids; pass queries=" in refused.stderr
    sides = ("--queries", tmp_path / "queries.tsv", "--documents", tmp_path / "collection.tsv")
    result = run(*command, *sides, "--device", "cpu", "--validation-queries", 0)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [f"{tmp_path / 'out'}: trained on 12 rows, 1 steps."]


def test_faulty_rows_are_named(train, tmp_path):
    result = train([*PAIRS[:2], {"query": "q"}])
    assert result.exit_code == 1
    assert "Error: pairs.jsonl:3 has the fields 'query'; expected" in result.stderr
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_not_replaced(train, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    result = train(PAIRS)
    assert result.exit_code == 1
    assert "holds something already; give a new folder or an empty one" in result.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("was_folder", [False, True])
def test_a_failed_training_leaves_no_folder_of_its_own(train, tmp_path, was_folder):
    output = tmp_path / "models" / "mine"
    if was_folder:
        output.mkdir(parents=True)
    assert train(PAIRS[:1], "--output", output).exit_code == 1
    assert (output.exists(), output.parent.exists()) == (was_folder, was_folder)


def test_a_head_alone(train, tmp_path, shallow):
    result = train(PAIRS, "--head-only", "--dims", 16, "--json", model=shallow)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["after"]["ndcg@10"] > 0
    assert ColBERT(str(tmp_path / "out"), device="cpu").embedding_size == 16
    refused = train(PAIRS, "--head-only", "--epochs", 2)
    assert refused.exit_code == 2
    assert "has no effect with --head-only" in refused.stderr
