"""Both losses inside the trainer of sentence-transformers, unchanged."""

import copy
import json

import pytest
import torch
from sentence_transformers import MultiVectorEncoder, MultiVectorEncoderTrainer
from sentence_transformers.multi_vector_encoder.evaluation import (
    MultiVectorInformationRetrievalEvaluator,
    MultiVectorTripletEvaluator,
)

from latelier.losses import Contrastive, Distillation
from latelier.models import ColBERT

TEXTS = ["Wings push air down.", "a pear"]


def losses_of(trainer, key="loss"):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def same(first, second):
    # Up to rounding: weights that were laid out for the processor add up in another order.
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(("loss", "data"), [(Contrastive, "triplets"), (Distillation, "scored")])
def test_loss_falls_and_the_saved_model_gives_equal_embeddings(loss, data, model, train, request, tmp_path):
    dataset = request.getfixturevalue(data)
    trainer = train(loss(model), dataset, max_steps=4, per_device_train_batch_size=4)
    values = losses_of(trainer)
    assert len(values) == 4
    assert values[-1] < 0.8 * values[0]
    model.eval()
    model.save(str(tmp_path / "saved"))
    for reload in (ColBERT, MultiVectorEncoder):
        reloaded = reload(str(tmp_path / "saved"), device="cpu")
        assert same(model.encode_query(TEXTS), reloaded.encode_query(TEXTS))
        assert same(model.encode_document(TEXTS), reloaded.encode_document(TEXTS))


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


def test_the_best_model_is_loaded_at_the_end(model, train, triplets):
    evaluator = MultiVectorTripletEvaluator(triplets["anchor"], triplets["positive"], triplets["negative"])
    trainer = train(
        Contrastive(model),
        triplets,
        evaluator,
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_maxsim_accuracy",
    )
    accuracy = losses_of(trainer, "eval_maxsim_accuracy")
    assert trainer.state.best_metric == max(accuracy)
    best = ColBERT(trainer.state.best_model_checkpoint, device="cpu")
    assert same(best.encode_query(TEXTS), model.eval().encode_query(TEXTS))


def test_evaluation_loss_and_retrieval_evaluator(model, train, triplets):
    evaluator = MultiVectorInformationRetrievalEvaluator(
        queries={str(i): text for i, text in enumerate(triplets["anchor"])},
        corpus={str(i): text for i, text in enumerate(triplets["positive"])},
        relevant_docs={str(i): {str(i)} for i in range(4)},
        ndcg_at_k=[3],
        map_at_k=[3],
        mrr_at_k=[3],
        accuracy_at_k=[1],
        precision_recall_at_k=[1],
    )
    changes = {"eval_strategy": "steps", "eval_steps": 3, "max_steps": 6, "per_device_train_batch_size": 4}
    trainer = train(Contrastive(model), triplets, evaluator, eval_dataset=triplets, **changes)
    first, last = losses_of(trainer, "eval_loss")
    assert last < first
    assert losses_of(trainer, "eval_maxsim_ndcg@3")[-1] > 0.8


def test_several_data_sets_with_a_loss_each(model, arguments, triplets, scored):
    trainer = MultiVectorEncoderTrainer(
        model=model,
        args=arguments(max_steps=4, multi_dataset_batch_sampler="round_robin"),
        train_dataset={"pairs": triplets, "teacher": scored},
        loss={"pairs": Contrastive(model), "teacher": Distillation(model)},
    )
    trainer.train()
    assert len(losses_of(trainer)) == 4
    assert min(losses_of(trainer)) > 0  # two steps of each loss


def test_gradients_accumulate_to_their_mean(model, arguments, scored, train):
    model.eval()
    batches = [scored.select([0, 1]), scored.select([2, 3])]
    gradients = []
    for part in batches:
        loss = Distillation(model)
        features = [model.tokenize(part[name], is_query=name == "query") for name in part.column_names[:-1]]
        loss(features, torch.tensor(part["scores"])).backward()
        gradients.append(model[1].linear.weight.grad.clone())
        model.zero_grad()
    before = model[1].linear.weight.detach().clone()
    train(
        Distillation(model.apply(without_dropout)),
        scored,
        max_steps=1,
        gradient_accumulation_steps=2,
        learning_rate=1.0,
        optim="sgd",
        max_grad_norm=0.0,
        dataloader_num_workers=0,
    )
    step = before - model[1].linear.weight.detach()
    torch.testing.assert_close(step, (gradients[0] + gradients[1]) / 2, rtol=1e-3, atol=1e-5)


def without_dropout(module):
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0
    if hasattr(module, "dropout_prob"):
        module.dropout_prob = 0.0


def test_gradient_checkpointing_gives_the_same_losses(model, train, triplets):
    model.apply(without_dropout)
    runs = [
        losses_of(train(Contrastive(copy.deepcopy(model)), triplets, max_steps=2, gradient_checkpointing=on))
        for on in (False, True)
    ]
    assert runs[1] == pytest.approx(runs[0], rel=1e-3)


def test_bfloat16_training(model, train, triplets):
    trainer = train(Contrastive(model), triplets, max_steps=3, per_device_train_batch_size=4, bf16=True)
    values = losses_of(trainer)
    assert values[-1] < values[0]
    assert model[1].linear.weight.dtype == torch.float32


def test_a_compiled_model_has_the_same_losses(model, train, triplets):
    model.apply(without_dropout)
    plain = train(Contrastive(copy.deepcopy(model)), triplets, max_steps=2)
    trainer = train(Contrastive(model), triplets, max_steps=2, torch_compile=True, torch_compile_backend="eager")
    assert type(trainer.loss.model).__name__ == "OptimizedModule"
    assert losses_of(trainer) == pytest.approx(losses_of(plain), rel=1e-4)


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
