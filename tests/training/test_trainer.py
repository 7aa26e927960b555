"""Both losses inside the trainer of sentence-transformers, unchanged."""

import copy
import json

import pytest
import torch
from datasets import Dataset
from sentence_transformers import (
    MultiVectorEncoderTrainer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)

from latelier.errors import LatelierError
from latelier.losses import CachedContrastive, Contrastive, Distillation, MarginMSE
from latelier.models import ColBERT
from latelier.scores import xtr_kd_scores


def losses_of(trainer, key="loss"):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def test_teacher_scores_are_learned(model, train, scored):
    train(Distillation(model, normalize_scores=False), scored, max_steps=8, per_device_train_batch_size=4)
    model.eval()
    hits = 0
    for row in scored:
        documents = [row[f"document_{i}"] for i in (1, 2, 3)]
        scores = model.scores([row["query"]] * 3, documents, tqdm_bar=False)
        hits += int(scores.argmax() == torch.tensor(row["scores"]).argmax())
    assert hits == 4


@pytest.mark.parametrize("negatives", [0, 1, 2])
def test_the_trainer_computes_what_a_call_by_hand_does(negatives, model, train, triplets):
    columns = ["anchor", "positive", "negative_1", "negative_2"][: 2 + negatives]
    dataset = triplets.rename_column("negative", "negative_1").add_column("negative_2", ["Birds.", "A.", "B.", "C."])
    batch = [model.tokenize(dataset[name], is_query=name == "anchor") for name in columns]
    loss = Contrastive(model.apply(without_dropout))
    expected = loss(batch).item()
    trainer = train(loss, dataset.select_columns(columns), max_steps=1, per_device_train_batch_size=4)
    assert losses_of(trainer) == [pytest.approx(expected, rel=1e-3)]  # the trainer logs four digits


def test_a_column_of_lists_is_one_column_for_each_candidate(model, train, scored):
    model.apply(without_dropout)
    lists = [[row[f"document_{i}"] for i in (1, 2, 3)] for row in scored]
    columns = {"query": scored["query"], "documents": lists, "scores": scored["scores"]}
    together = Dataset.from_dict(columns)
    expected, found = (
        losses_of(train(Distillation(copy.deepcopy(model)), data, max_steps=1)) for data in (scored, together)
    )
    assert found == pytest.approx(expected, rel=1e-3)
    uneven = Dataset.from_dict({**columns, "documents": [lists[0][:2], *lists[1:]]}).remove_columns("scores")
    with pytest.raises(LatelierError, match=r"load_training_set\(dataset, candidates=n\)\.to_dataset\(\)"):
        train(Contrastive(model), uneven, max_steps=2)


def without_dropout(module):
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0
    if hasattr(module, "dropout_prob"):
        module.dropout_prob = 0.0


def test_the_model_card_tells_of_the_loss(model, train, scored, tmp_path):
    trainer = train(Distillation(model), scored, max_steps=1)
    trainer.save_model(str(tmp_path / "saved"))
    card = (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")
    settings = {"score_metric": "colbert_kd_scores", "size_average": True, "normalize_scores": True}
    assert "loss:Distillation" in card
    assert "latelier.losses.distillation.Distillation" in card
    assert "santhanam-etal-2022-colbertv2" in card
    block = card[card.index('"score_metric"') :].split("```")[0].strip().rstrip("}")
    assert json.loads("{" + block + "}") == settings


LOSSES = {
    "cached": (CachedContrastive, {"mini_batch_size": 2}, "triplets"),
    "distillation-in-batch": (Distillation, {"in_batch_weight": 1.0, "temperature": 2.0}, "scored"),
    "margin": (MarginMSE, {"dims": (16, 4), "score_metric": xtr_kd_scores}, "scored"),
}


def parameters(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("name", LOSSES)
def test_under_the_trainers_options_the_loss_falls_too(name, model, train, request):
    kind, options, data = LOSSES[name]
    changes = {"bf16": True, "gradient_checkpointing": True, "gradient_accumulation_steps": 2}
    trainer = train(kind(model, **options), request.getfixturevalue(data), max_steps=4, **changes)
    assert losses_of(trainer)[-1] < 0.9 * losses_of(trainer)[0]


@pytest.mark.parametrize("name", ["cached", "distillation-in-batch"])
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(name, model, arguments, request):
    kind, options, data = LOSSES[name]
    data = request.getfixturevalue(data)
    start = copy.deepcopy(model)
    changes = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "seed": 7}

    def trainer(encoder):
        return MultiVectorEncoderTrainer(
            model=encoder, args=arguments(**changes), train_dataset=data, loss=kind(encoder, **options)
        )

    whole = trainer(model)
    whole.train()
    checkpoint = f"{whole.args.output_dir}/checkpoint-2"
    resumed = trainer(start)
    resumed.train(resume_from_checkpoint=checkpoint)
    assert resumed.state.global_step == 4
    expected, found = parameters(model), parameters(resumed.model)
    assert any(
        (expected[key] - value).abs().max() > 1e-4
        for key, value in parameters(ColBERT(checkpoint, device="cpu")).items()
    )
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-6)


def test_adapters_of_a_model_with_markers_want_a_saved_one(shallow, train, triplets, tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type=peft.TaskType.FEATURE_EXTRACTION, r=4, target_modules=["query", "value"])
    model = ColBERT(shallow, 32, device="cpu")
    with pytest.raises(LatelierError, match=r"markers are new tokens.*model = ColBERT\('base'\)"):
        model.add_adapter(config)
    model.save(str(tmp_path / "base"))
    model = ColBERT(str(tmp_path / "base"), device="cpu")
    model.add_adapter(config)
    train(Contrastive(model), triplets, max_steps=2)
    expected = model.eval().encode_document(["Wings push air down."])[0]
    model.save(str(tmp_path / "saved"))
    found = ColBERT(str(tmp_path / "saved"), device="cpu").encode_document(["Wings push air down."])[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.fixture
def trainer(arguments):
    def make(loss, dataset, collator=None, **changes):
        return SentenceTransformerTrainer(
            model=loss.model,
            args=arguments(SentenceTransformerTrainingArguments, max_steps=2, **changes),
            train_dataset=dataset,
            loss=loss,
            data_collator=collator,
        )

    return make


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(("loss", "data"), [(Contrastive, "triplets"), (Distillation, "scored")])
def test_it_stops_before_the_first_step(loss, data, model, trainer, request):
    before = weights(model)
    stopped = trainer(loss(model), request.getfixturevalue(data))
    with pytest.raises(LatelierError, match=r"Train with MultiVectorEncoderTrainer, or pass rou"):
        stopped.train()
    assert stopped.state.global_step == 0
    assert all(torch.equal(parameter, before[name]) for name, parameter in weights(model).items())


def marker_ids(model):
    return [model.tokenizer.convert_tokens_to_ids(name) for name in ("[Q] ", "[D] ", "[D] ")]


def test_router_mapping_makes_it_right(model, trainer, triplets):
    mapping = {"anchor": "query", "positive": "document", "negative": "document"}
    running = trainer(Contrastive(model), triplets, router_mapping=mapping)
    batch = next(iter(running.get_train_dataloader()))
    assert batch["anchor_input_ids"].shape == (2, 32)
    assert [batch[f"{name}_input_ids"][0, 1].item() for name in mapping] == marker_ids(model)
    running.train()
    assert running.state.global_step == 2


def token(model, name):
    return model.tokenizer.convert_tokens_to_ids(name)


def test_training_reads_the_tokens_that_encoding_reads(model, arguments, triplets):
    trainer = MultiVectorEncoderTrainer(model=model, args=arguments(), train_dataset=triplets, loss=Contrastive(model))
    batch = trainer.data_collator([triplets[0], triplets[1]])
    for column, is_query in (("anchor", True), ("positive", False), ("negative", False)):
        expected = model.tokenize(triplets[column][:2], is_query=is_query)
        assert torch.equal(batch[f"{column}_input_ids"], expected["input_ids"])
        assert torch.equal(batch[f"{column}_attention_mask"], expected["attention_mask"])


def test_every_parameter_of_the_encoder_and_the_markers_learn(model, train, triplets):
    table = model[0].model.get_input_embeddings().weight
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train(Contrastive(model), triplets, max_steps=1)
    still = [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])]
    assert {name.split(".")[2] for name in still} <= {"pooler"}  # its output is not used
    old = next(value for name, value in before.items() if "word_embeddings" in name)
    for marker in ("[Q] ", "[D] ", "[MASK]"):
        assert not torch.equal(table[token(model, marker)], old[token(model, marker)])
