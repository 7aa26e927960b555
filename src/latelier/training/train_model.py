"""One run of ``latelier train``: data, model, negatives, training, and measures before and after."""

from __future__ import annotations

import math
import random
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import typer
from sentence_transformers.multi_vector_encoder.evaluation import MultiVectorInformationRetrievalEvaluator
from transformers import TrainerCallback

from latelier import indexes
from latelier.cli.output import quiet_loading, show_progress
from latelier.data import TrainingSet, load_training_set, mine_hard_negatives, order_by_neighbours
from latelier.errors import InvalidArgumentError, MissingExtraError, StorageError
from latelier.losses import CachedContrastive, Contrastive, Distillation
from latelier.losses.base import Loss
from latelier.models import DEFAULT_MODEL, ColBERT
from latelier.models import load as load_model

__all__ = ["Settings", "run"]

# Documents that held-out queries are searched in: enough to be hard, few enough to encode several times.
_CORPUS = 2000
_MINI_BATCH = 32
_RANKS = 10  # that negatives are taken from
_METRICS = {"success@1": "maxsim_accuracy@1", "ndcg@10": "maxsim_ndcg@10"}


class Settings(NamedTuple):
    """How to train; the fields are the options of the command."""

    epochs: float
    batch_size: int
    learning_rate: float
    temperature: float
    mine: int
    neighbours: int
    held_out: int
    seed: int


def run(
    source: str,
    output: Path,
    model: tuple[str | None, bool, int | None, str | None],
    texts: dict[str, str],
    settings: Settings,
) -> dict[str, Any]:
    """Train and save.

    Parameters
    ----------
    source
        What `latelier.data.load_training_set` reads.
    output
        Folder of the model.
    model
        Name, whether to build the whole recipe, dimensions, device.
    texts
        Files with the texts of ids.
    settings
        The rest.

    Returns
    -------
    dict
        Rows, steps, queries held out, and measures before and after.
    """
    _require_trainer()
    examples = load_training_set(source, **texts)  # type: ignore[arg-type]
    _prepare(output)
    training, held_out = _split(examples, settings)
    encoder = _make_model(*model, seed=settings.seed)
    evaluator = _evaluator(held_out, examples, settings.seed) if len(held_out) else None
    before = _measure(evaluator, encoder)
    if settings.mine or settings.neighbours:
        training = _mine(encoder, examples, training, settings)
        typer.echo(f"Mined negatives for {len(training):,} rows.", err=True)
    if len(training) < 2:
        raise InvalidArgumentError(f"{source} leaves {len(training)} rows to train on; expected at least 2.")
    steps = _train(encoder, _arrange(training, settings), evaluator, settings)
    after = _measure(evaluator, encoder)
    encoder.save_pretrained(str(output))
    return {
        "model": str(output),
        "rows": len(training),
        "steps": steps,
        "held_out": len(held_out),
        "before": before,
        "after": after,
    }


def _require_trainer() -> None:
    try:
        import accelerate  # noqa: F401
        import datasets  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("Training", "train") from error


def _prepare(output: Path) -> None:
    """Make the folder now, and see that it can be written: training for hours first would be a pity."""
    try:
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise InvalidArgumentError(f"{output} holds something already; give a new folder or an empty one.")
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error}.") from error


def _split(examples: TrainingSet, settings: Settings) -> tuple[TrainingSet, TrainingSet]:
    """Hold out queries, with all of their rows."""
    queries = list(dict.fromkeys(examples.queries))
    random.Random(settings.seed).shuffle(queries)
    chosen = set(queries[: min(settings.held_out, len(queries) // 10)])
    rows = range(len(examples))
    return (
        examples.select([i for i in rows if examples.queries[i] not in chosen]),
        examples.select([i for i in rows if examples.queries[i] in chosen]),
    )


def _make_model(name: str | None, recipe: bool, dims: int | None, device: str | None, *, seed: int) -> ColBERT:
    quiet_loading()
    torch.manual_seed(seed)
    if recipe:
        return ColBERT(name or DEFAULT_MODEL, dims, device)
    if dims is not None:
        return ColBERT.from_dense(name or DEFAULT_MODEL, "orthogonal", dims, device)
    return load_model(name or DEFAULT_MODEL, device=device)


def _positives(examples: TrainingSet) -> list[str]:
    """Return what is right in each row: the first document, or the one that the teacher likes best."""
    if examples.scores is None:
        return [documents[0] for documents in examples.documents]
    best = [max(range(len(scores)), key=scores.__getitem__) for scores in examples.scores]
    return [documents[i] for documents, i in zip(examples.documents, best, strict=True)]


def _evaluator(held_out: TrainingSet, examples: TrainingSet, seed: int) -> Any:
    own = list(dict.fromkeys(text for documents in held_out.documents for text in documents))
    others = sorted({text for documents in examples.documents for text in documents} - set(own))
    random.Random(seed).shuffle(others)
    corpus: dict[str, Any] = {str(i): text for i, text in enumerate([*own, *others[: max(0, _CORPUS - len(own))]])}
    ids = {text: id_ for id_, text in corpus.items()}
    queries = {text: str(i) for i, text in enumerate(dict.fromkeys(held_out.queries))}
    relevant: dict[str, set[str]] = {id_: set() for id_ in queries.values()}
    for query, text in zip(held_out.queries, _positives(held_out), strict=True):
        relevant[queries[query]].add(ids[text])
    return MultiVectorInformationRetrievalEvaluator(
        queries={id_: text for text, id_ in queries.items()},
        corpus=corpus,
        relevant_docs=relevant,
        name="held-out",
        write_csv=False,
    )


def _measure(evaluator: Any, model: ColBERT) -> dict[str, float]:
    if evaluator is None:
        return {}
    values = evaluator(model.eval())
    return {name: float(values[f"held-out_{key}"]) for name, key in _METRICS.items()}


def _mine(model: ColBERT, examples: TrainingSet, training: TrainingSet, settings: Settings) -> TrainingSet:
    if examples.scores is not None:
        raise InvalidArgumentError(
            "the rows have a teacher's scores, which mined negatives would lack; leave out --mine and --neighbours."
        )
    texts = list(dict.fromkeys(text for documents in examples.documents for text in documents))
    index = indexes.Flat()
    index.add(range(len(texts)), model.encode_document(texts, packed=True), texts=texts)
    places = {text: i for i, text in enumerate(texts)}
    queries: dict[str, str] = {}
    judgements: dict[str, dict[int, int]] = {}
    for query, documents in zip(training.queries, training.documents, strict=True):
        queries[query] = query
        judgements.setdefault(query, {})[places[documents[0]]] = 1
    # Neighbours are found among more negatives than are trained on, the hardest first.
    kept = max(settings.mine, min(_RANKS, max(1, len(texts) // 2))) if settings.neighbours else settings.mine
    return mine_hard_negatives(
        model,
        index,
        queries,
        judgements,
        negatives=kept,
        ranks=(1, kept if settings.neighbours else max(_RANKS, kept)),
        seed=None if settings.neighbours else settings.seed,
        show_progress_bar=show_progress(),
    )


def _arrange(training: TrainingSet, settings: Settings) -> TrainingSet:
    if not settings.neighbours:
        return training
    own = {"negatives": settings.mine, "passes": _passes(settings), "seed": settings.seed}
    return order_by_neighbours(training, settings.neighbours, **own)


def _passes(settings: Settings) -> int:
    """Return how often rows are put together: for each epoch, where their order counts."""
    return max(1, math.ceil(settings.epochs)) if settings.neighbours else 1


def _loss(model: ColBERT, training: TrainingSet, settings: Settings) -> Loss:
    if training.scores is not None:
        between = all(0 <= score <= 1 for scores in training.scores for score in scores)
        return Distillation(model, normalize_scores=between and training.width > 2)
    if settings.batch_size > _MINI_BATCH:
        return CachedContrastive(model, temperature=settings.temperature, mini_batch_size=_MINI_BATCH)
    return Contrastive(model, temperature=settings.temperature)


def _train(model: ColBERT, training: TrainingSet, evaluator: Any, settings: Settings) -> int:
    from sentence_transformers import MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments
    from sentence_transformers.base.training_args import BatchSamplers
    from transformers import PrinterCallback, ProgressCallback

    from latelier.data.samplers import InOrder

    on_steps: dict[str, Any] = {"eval_strategy": "no", "save_strategy": "no"}
    if evaluator is not None:
        on_steps = {
            "eval_strategy": "steps",
            "eval_steps": 0.2,
            "save_strategy": "steps",
            "save_steps": 0.2,
            "save_total_limit": 1,
            "load_best_model_at_end": True,
            "metric_for_best_model": f"eval_held-out_{_METRICS['ndcg@10']}",
        }
    with tempfile.TemporaryDirectory() as folder:
        arguments = MultiVectorEncoderTrainingArguments(
            output_dir=folder,
            num_train_epochs=settings.epochs / _passes(settings),
            per_device_train_batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            warmup_steps=0.1,
            batch_sampler=InOrder if settings.neighbours else BatchSamplers.NO_DUPLICATES,
            bf16=model.device.type == "cuda" and torch.cuda.is_bf16_supported(),
            logging_steps=0.05,
            report_to=[],
            use_cpu=model.device.type == "cpu",
            seed=settings.seed,
            **on_steps,
        )
        trainer = MultiVectorEncoderTrainer(
            model=model,
            args=arguments,
            train_dataset=training.to_dataset(),
            loss=_loss(model, training, settings),
            evaluator=evaluator,
        )
        trainer.remove_callback(PrinterCallback)  # which writes to standard output
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(_Report())
        trainer.train()
    return int(trainer.state.global_step)


class _Report(TrainerCallback):
    """Tells how training goes, on standard error."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Write one line for a loss or a measure."""
        logs = logs or {}
        if "loss" in logs:
            typer.echo(f"step {state.global_step}/{state.max_steps}: loss {float(logs['loss']):.4f}", err=True)
        measured = {name: logs.get(f"eval_held-out_{key}") for name, key in _METRICS.items()}
        if all(value is not None for value in measured.values()):
            shown = ", ".join(f"{name} {value:.3f}" for name, value in measured.items())
            typer.echo(f"step {state.global_step}/{state.max_steps}: held out: {shown}", err=True)
