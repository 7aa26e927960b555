"""What the model reads in training is what it reads when used: markers, expansion, lengths."""

import pytest
import torch
from sentence_transformers import MultiVectorEncoderTrainer

from latelier.losses import Contrastive, Distillation


class Recording:
    """A loss that keeps the batches it is given."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.batches = []

    def forward(self, sentence_features, labels=None):
        sentence_features = [dict(features) for features in sentence_features]
        self.batches.append((sentence_features, labels))
        return super().forward(sentence_features, labels)


class RecordingContrastive(Recording, Contrastive):
    pass


class RecordingDistillation(Recording, Distillation):
    pass


def token(model, name):
    return model.tokenizer.convert_tokens_to_ids(name)


@pytest.mark.parametrize(("loss", "data"), [(RecordingContrastive, "triplets"), (RecordingDistillation, "scored")])
def test_batches_have_markers_and_expansion(loss, data, model, train, request):
    dataset = request.getfixturevalue(data)
    recording = loss(model)
    train(recording, dataset, max_steps=2)
    columns = len([name for name in dataset.column_names if name != "scores"])
    assert len(recording.batches) == 2
    for features, labels in recording.batches:
        assert len(features) == columns
        assert (labels is None) == (loss is RecordingContrastive)
        queries, documents = features[0], features[1:]
        ids = queries["input_ids"]
        assert queries["task"] == "query"
        assert ids.shape == (2, 32)
        assert (ids[:, 1] == token(model, "[Q] ")).all()
        assert (ids[:, -1] == token(model, "[MASK]")).all()
        expanded = queries["query_expansion_positions"]
        assert (ids[expanded] == token(model, "[MASK]")).all()
        assert (expanded.sum(1) + queries["attention_mask"].sum(1) == 32).all()
        for column in documents:
            assert column["task"] == "document"
            assert (column["input_ids"][:, 1] == token(model, "[D] ")).all()
            assert (column["input_ids"] != token(model, "[MASK]")).all()


def test_training_reads_the_tokens_that_encoding_reads(model, arguments, triplets):
    trainer = MultiVectorEncoderTrainer(model=model, args=arguments(), train_dataset=triplets, loss=Contrastive(model))
    batch = trainer.data_collator([triplets[0], triplets[1]])
    for column, is_query in (("anchor", True), ("positive", False), ("negative", False)):
        expected = model.tokenize(triplets[column][:2], is_query=is_query)
        assert torch.equal(batch[f"{column}_input_ids"], expected["input_ids"])
        assert torch.equal(batch[f"{column}_attention_mask"], expected["attention_mask"])


def test_lengths_can_be_capped_for_training_alone(model, train, triplets):
    recording = RecordingContrastive(model)
    train(recording, triplets, max_steps=1, max_length={"document": 6})
    features, _ = recording.batches[0]
    assert [column["input_ids"].shape[1] for column in features] == [32, 6, 6]
    assert model.max_length_document == 350


def test_prompts_of_the_arguments_replace_the_markers(model, train, triplets):
    recording = RecordingContrastive(model)
    train(recording, triplets, max_steps=1, prompts={"anchor": "question: "})
    features, _ = recording.batches[0]
    assert (features[0]["input_ids"][:, 1] == token(model, "question")).all()
    assert (features[1]["input_ids"][:, 1] == token(model, "[D] ")).all()


def test_every_parameter_of_the_encoder_and_the_markers_learn(model, train, triplets):
    table = model[0].model.get_input_embeddings().weight
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train(Contrastive(model), triplets, max_steps=1)
    still = [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])]
    assert {name.split(".")[2] for name in still} <= {"pooler"}  # its output is not used
    old = next(value for name, value in before.items() if "word_embeddings" in name)
    for marker in ("[Q] ", "[D] ", "[MASK]"):
        assert not torch.equal(table[token(model, marker)], old[token(model, marker)])
