"""One run of the sentence-transformers trainer, with the loss that suits the data."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback

from latelier.data import TrainingSet
from latelier.losses import CachedContrastive, Contrastive, Distillation
from latelier.losses.base import Loss
from latelier.models import ColBERT
from latelier.training.options import TrainingOptions
from latelier.training.validation import BEST, measured

__all__ = ["choose_loss", "run_trainer"]

# Larger batches are trained with `CachedContrastive`, in forward passes of 32 texts, which fit into memory even with
# 512 tokens per text.
_MINI_BATCH = 32


def run_trainer(
    model: ColBERT,
    rows: TrainingSet,
    evaluator: Any,
    options: TrainingOptions,
    on_progress: Callable[[str], None] | None = None,
) -> int:
    """Train a model in place; with an evaluator, it ends with the weights of the best of five checkpoints.

    Parameters
    ----------
    model
        The model to train.
    rows
        Rows to train on; with `options.neighbours`, batches keep their order.
    evaluator
        Evaluator of sentence-transformers, or None.
    options
        How to train.
    on_progress
        Called with a line of text for each loss and each measure.

    Returns
    -------
    int
        Number of steps.
    """
    from sentence_transformers import MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments
    from sentence_transformers.base.training_args import BatchSamplers
    from transformers import PrinterCallback, ProgressCallback

    from latelier.data.samplers import InOrder

    checkpoints: dict[str, Any] = {"eval_strategy": "no", "save_strategy": "no"}
    if evaluator is not None:
        checkpoints = {
            "eval_strategy": "steps",
            "eval_steps": 0.2,
            "save_strategy": "steps",
            "save_steps": 0.2,
            "save_total_limit": 1,
            "load_best_model_at_end": True,
            "metric_for_best_model": BEST,
        }
    with tempfile.TemporaryDirectory() as folder:
        arguments = MultiVectorEncoderTrainingArguments(
            output_dir=folder,
            num_train_epochs=options.epochs / options.passes,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            warmup_steps=0.1,
            batch_sampler=InOrder if options.neighbours else BatchSamplers.NO_DUPLICATES,
            bf16=model.device.type == "cuda" and torch.cuda.is_bf16_supported(),
            logging_steps=0.05,
            report_to=[],
            use_cpu=model.device.type == "cpu",
            seed=options.seed,
            **checkpoints,
        )
        trainer = MultiVectorEncoderTrainer(
            model=model,
            args=arguments,
            train_dataset=rows.to_dataset(),
            loss=choose_loss(model, rows, options),
            evaluator=evaluator,
        )
        trainer.remove_callback(PrinterCallback)  # prints to standard output
        trainer.remove_callback(ProgressCallback)
        if on_progress is not None:
            trainer.add_callback(_Progress(on_progress))
        trainer.train()
    return int(trainer.state.global_step)


def choose_loss(model: ColBERT, rows: TrainingSet, options: TrainingOptions) -> Loss:
    """Return `Distillation` for rows with scores, else `Contrastive`, or `CachedContrastive` for large batches.

    `Distillation` normalises the student's scores only if all teacher scores are between 0 and 1 and each row has more
    than two candidates: two normalised scores are always 0 and 1, which leaves no gradient.
    """
    if rows.scores is not None:
        from_0_to_1 = all(0 <= score <= 1 for scores in rows.scores for score in scores)
        return Distillation(model, normalize_scores=from_0_to_1 and rows.width > 2)
    if options.batch_size > _MINI_BATCH:
        return CachedContrastive(model, temperature=options.temperature, mini_batch_size=_MINI_BATCH)
    return Contrastive(model, temperature=options.temperature)


class _Progress(TrainerCallback):
    """Reports losses and measures to `on_progress`, as lines of text."""

    def __init__(self, on_progress: Callable[[str], None]) -> None:
        self._on_progress = on_progress

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Report a loss or measures."""
        logs = logs or {}
        step = f"step {state.global_step}/{state.max_steps}"
        if "loss" in logs:
            self._on_progress(f"{step}: loss {float(logs['loss']):.4f}")
        measures = measured(logs, "eval_")
        if measures:
            shown = ", ".join(f"{name} {value:.3f}" for name, value in measures.items())
            self._on_progress(f"{step}: validation: {shown}")
