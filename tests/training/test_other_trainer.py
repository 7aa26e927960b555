"""`SentenceTransformerTrainer` does not know queries from documents: the model stops it, or is told by the user."""

import pytest
import torch
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.multi_vector_encoder.data_collator import MultiVectorEncoderDataCollator

from latelier.errors import LatelierError
from latelier.losses import Contrastive, Distillation
from latelier.models import ColBERT


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
    with pytest.raises(LatelierError, match=r"Train with sentence_transformers.MultiVectorEncoderTrainer, or pass rou"):
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


def test_the_collator_of_late_interaction_makes_it_right(model, trainer, triplets):
    collator = MultiVectorEncoderDataCollator(preprocess_fn=model.preprocess)
    running = trainer(Contrastive(model), triplets, collator)
    batch = next(iter(running.get_train_dataloader()))
    columns = ("anchor", "positive", "negative")
    assert [batch[f"{name}_input_ids"][0, 1].item() for name in columns] == marker_ids(model)
    running.train()
    assert running.state.global_step == 2


def test_a_model_without_markers_trains_anyway(shallow, trainer, triplets):
    model = ColBERT.from_dense(shallow, device="cpu")
    running = trainer(Contrastive(model), triplets)
    running.train()
    assert running.state.global_step == 2
