"""Every loss inside the trainer: learning, resuming, adapters, checkpoints of activations."""

import copy

import pytest
import torch
from sentence_transformers import MultiVectorEncoder, MultiVectorEncoderTrainer

from latelier.data import load_training_set
from latelier.errors import LatelierError
from latelier.losses import CachedContrastive, Contrastive, Distillation, MarginMSE
from latelier.models import ColBERT
from latelier.scores import xtr_kd_scores, xtr_scores

LOSSES = {
    "contrastive": (Contrastive, {}, "triplets"),
    "contrastive-dims": (Contrastive, {"dims": (16, 8)}, "triplets"),
    "contrastive-xtr": (Contrastive, {"score_metric": xtr_scores, "temperature": 0.1}, "triplets"),
    "cached": (CachedContrastive, {"mini_batch_size": 2}, "triplets"),
    "distillation": (Distillation, {}, "scored"),
    "distillation-in-batch": (Distillation, {"in_batch_weight": 1.0, "temperature": 2.0}, "scored"),
    "distillation-xtr": (Distillation, {"score_metric": xtr_kd_scores}, "scored"),
    "margin": (MarginMSE, {"dims": (16, 4)}, "scored"),
}


@pytest.fixture(params=LOSSES)
def case(request):
    kind, options, data = LOSSES[request.param]
    return kind, options, request.getfixturevalue(data)


def losses_of(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def parameters(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def test_the_loss_falls(case, model, train):
    kind, options, data = case
    values = losses_of(train(kind(model, **options), data, max_steps=4, per_device_train_batch_size=4))
    assert len(values) == 4
    assert values[-1] < 0.9 * values[0]


@pytest.mark.parametrize("name", ["cached", "distillation-in-batch"])
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


@pytest.mark.parametrize("name", ["contrastive", "cached", "distillation"])
def test_adapters_train_and_the_rest_stays(name, model, train, request, tmp_path):
    peft = pytest.importorskip("peft")
    kind, options, data = LOSSES[name]
    config = peft.LoraConfig(task_type=peft.TaskType.FEATURE_EXTRACTION, r=4, target_modules=["query", "value"])
    model.save(str(tmp_path / "base"))
    model = ColBERT(str(tmp_path / "base"), device="cpu")
    model.add_adapter(config)
    before = parameters(model)
    values = losses_of(
        train(kind(model, **options), request.getfixturevalue(data), max_steps=6, per_device_train_batch_size=4)
    )
    assert values[-1] < values[0]
    changed = {name for name, value in parameters(model).items() if not torch.equal(value, before[name])}
    assert changed
    encoder = {name for name in changed if name.startswith("0.")}
    assert encoder
    assert all("lora_" in name for name in encoder)


def test_adapters_are_saved_and_load_in_plain_sentence_transformers(shallow, train, triplets, tmp_path):
    peft = pytest.importorskip("peft")
    model = ColBERT.from_dense(shallow, device="cpu")
    model.add_adapter(
        peft.LoraConfig(task_type=peft.TaskType.FEATURE_EXTRACTION, r=4, target_modules=["query", "value"])
    )
    train(Contrastive(model), triplets, max_steps=2)
    expected = model.eval().encode_document(["Wings push air down."])[0]
    model.save(str(tmp_path / "saved"))
    for reload in (ColBERT, MultiVectorEncoder):
        found = reload(str(tmp_path / "saved"), device="cpu")
        torch.testing.assert_close(found.encode_document(["Wings push air down."])[0], expected, rtol=0, atol=1e-5)


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


def test_read_data_goes_straight_into_the_trainer(model, train):
    rows = [
        {
            "query": "where is Rome?",
            "pos": ["On the Tiber."],
            "neg": ["In Georgia."],
            "pos_scores": [0.9],
            "neg_scores": [0.2],
        },
        {
            "query": "what is rust?",
            "pos": ["Iron oxide."],
            "neg": ["A novel."],
            "pos_scores": [0.8],
            "neg_scores": [0.1],
        },
    ]
    loss = Distillation(model, normalize_scores=False)
    values = losses_of(train(loss, load_training_set(rows).to_dataset(), max_steps=6))
    assert values[-1] < values[0]
