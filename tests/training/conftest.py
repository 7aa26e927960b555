"""A few sentences to train on, and what every training run here shares."""

import copy

import pytest
import torch
from datasets import Dataset
from sentence_transformers import MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments

from latelier.models import ColBERT


@pytest.fixture(scope="session")
def untrained(shallow):
    torch.manual_seed(0)
    return ColBERT(shallow, 16, "cpu")


@pytest.fixture
def model(untrained):
    return copy.deepcopy(untrained)


@pytest.fixture(scope="session")
def triplets():
    return Dataset.from_dict(
        {
            "anchor": ["are fruits healthy?", "how do planes fly?", "where is Rome?", "what is rust?"],
            "positive": [
                "Fruits (and berries) are good for your health.",
                "Wings push air down.",
                "Rome is the capital of Italy; it lies on the Tiber.",
                "Iron and oxygen form a red oxide.",
            ],
            "negative": [
                "Fruits are sold by weight.",
                "Planes are made of metal.",
                "Rome, Georgia, has 38,000 inhabitants.",
                "Rust is a novel by Philipp Meyer.",
            ],
        }
    )


@pytest.fixture(scope="session")
def scored(triplets):
    columns = triplets.rename_columns({"anchor": "query", "positive": "document_1", "negative": "document_2"})
    third = ["Cars are fast.", "Fish swim.", "Paris is in France.", "Gold does not rust."]
    scores = [[0.9, 0.3, 0.0], [0.8, 0.4, 0.1], [1.0, 0.2, 0.3], [0.9, 0.2, 0.4]]
    return columns.add_column("document_3", third).add_column("scores", scores)


@pytest.fixture
def arguments(tmp_path):
    """Arguments of a short run without logs, files or progress bars."""

    def make(kind=MultiVectorEncoderTrainingArguments, **changes):
        settings = {
            "output_dir": str(tmp_path / "run"),
            "max_steps": 3,
            "per_device_train_batch_size": 2,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
        }
        return kind(**{**settings, **changes})

    return make


@pytest.fixture
def train(arguments):
    def run(loss, dataset, evaluator=None, eval_dataset=None, **changes):
        trainer = MultiVectorEncoderTrainer(
            model=loss.model,
            args=arguments(**changes),
            train_dataset=dataset,
            eval_dataset=eval_dataset,
            loss=loss,
            evaluator=evaluator,
        )
        trainer.train()
        return trainer

    return run
