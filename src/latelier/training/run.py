"""`train`: from a file of training data to a model, measured before and after on queries that are held back."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import TrainerCallback

from latelier import indexes
from latelier.data import (
    InOrder,
    TrainingSet,
    load_training_set,
    mine_hard_negatives,
    order_by_neighbours,
    split_validation,
)
from latelier.errors import InvalidArgumentError, StorageError
from latelier.losses import CachedContrastive, Contrastive, Distillation
from latelier.losses.base import Loss
from latelier.models import DEFAULT_MODEL, ColBERT, load
from latelier.training.distilling import STEPS, distill_head
from latelier.training.validation import (
    BEST,
    Validation,
    describe_cut_texts,
    make_validation,
    measure,
    measured,
    sampled,
)
from latelier.utils.checks import check_choice, check_count, check_number
from latelier.utils.files import as_path
from latelier.utils.misc import bar, fragment, needs_extra, progress_bar, table, warn_caller

_MAX_EPOCHS = _MAX_LEARNING_RATE = 1e6  # more epochs overflow the trainer's number of steps
# six steps move the weights by 3e-5; passes beyond twenty learn rows by heart
_LEAST_STEPS = 100
_MOST_PASSES = 20
_MAX_SEED = 2**32 - 1  # the largest seed of numpy
_LEAST_QUERIES = 10  # with fewer, or of fewer positives, the bootstrap interval is far too small


@dataclass(frozen=True)
class TrainingOptions:
    """Options of `train`; those of the command ``latelier train`` have the same names.

    Parameters
    ----------
    start
        How a dense model or a bare encoder that is given by name becomes a late-interaction model. ``"dense"``: its
        token vectors are used unchanged (`ColBERT.from_dense`). ``"colbert"``: markers, query expansion and a new
        linear head are added (`ColBERT`).
    dims
        Dimensions per token of a model that is given by name; None: the model's own, or 128 for a new head.
    device
        Where a model that is given by name is loaded; None: the best available device.
    trust_remote_code
        Run the code that comes with it.
    mine
        Number of hard negatives to mine for each pair, among all documents of the data.
    neighbours
        Group each pair with up to `neighbours` pairs whose positives are its mined hard negatives. These positives are
        then in-batch negatives of the pair, at no extra cost.
    epochs
        Passes through the data, such as 0.5 or 3; None: one, or on small data as many as make 100 steps, at most 20.
    batch_size
        Queries per batch. The documents of a batch are negatives for all of its queries.
    learning_rate
        Peak learning rate, after a warm-up over the first tenth of the steps.
    temperature
        Divisor of the scores in the contrastive loss; not used for rows with scores.
    validation_queries
        Maximum number of queries to split off for validation, at most 10% of the data (`data.split_validation`); 0
        trains on all. Not used if `train` gets a validation set.
    seed
        Seed of the validation split, of a new head, of the order of the rows and of the drawn negatives.
    head_only
        Leave the encoder as it is and add a layer to `dims` dimensions, 128 by default, that learns the encoder's own
        scores of the rows' texts (`distill_head`), in minutes. Which document belongs to a query, epochs, batch size
        and learning rate are not used.

    Examples
    --------
    >>> TrainingOptions(neighbours=7).batch_size
    32
    >>> TrainingOptions(batch_size=0)
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: received batch_size=0; expected an integer of at least 1.
    """

    start: Literal["dense", "colbert"] = "dense"
    dims: int | None = None
    device: str | None = None
    trust_remote_code: bool = False
    mine: int = 0
    neighbours: int = 0
    epochs: float | None = None
    batch_size: int = 32
    learning_rate: float = 3e-5
    temperature: float = 0.2
    validation_queries: int = 200
    seed: int = 0
    head_only: bool = False

    def __post_init__(self) -> None:
        if self.head_only and (self.start, self.mine, self.neighbours) != ("dense", 0, 0):
            raise InvalidArgumentError(
                "head_only=True uses no negatives and needs start='dense', mine and neighbours 0."
            )
        check_choice("start", self.start, ["dense", "colbert"])
        checked: dict[str, int | float | None] = {
            "dims": check_count("dims", self.dims, optional=True),
            "mine": check_count("mine", self.mine, 0),
            "neighbours": check_count("neighbours", self.neighbours, 0),
            "validation_queries": check_count("validation_queries", self.validation_queries, 0),
            "batch_size": check_count("batch_size", self.batch_size),
            "seed": check_count("seed", self.seed, 0, _MAX_SEED),
            "epochs": None if self.epochs is None else check_number("epochs", self.epochs, zero=True, most=_MAX_EPOCHS),
            "learning_rate": check_number("learning_rate", self.learning_rate, zero=True, most=_MAX_LEARNING_RATE),
            "temperature": check_number("temperature", self.temperature),
        }
        # Numbers of Python in place of those of numpy: neither JSON nor `random` takes integers of numpy.
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def passes(self) -> int:
        """How often the rows are repeated for training: with neighbours once per epoch, each time in new groups."""
        if self.neighbours:
            return max(1, math.ceil(self.epochs or 1))
        return 1

    def for_rows(self, rows: int) -> TrainingOptions:
        """Return these options with the number of epochs for so many rows, if it is not given.

        Parameters
        ----------
        rows
            Number of rows to train on.

        Examples
        --------
        >>> TrainingOptions(epochs=2).for_rows(10).epochs
        2
        """
        if self.epochs is not None:
            return self
        per_pass = math.ceil(rows / self.batch_size)
        return replace(self, epochs=float(min(math.ceil(_LEAST_STEPS / per_pass), _MOST_PASSES)))


@dataclass(frozen=True)
class TrainingReport:
    """What was trained, and the measures before and after; prints as a table.

    Parameters
    ----------
    model
        Folder of the saved model.
    rows
        Rows that were trained on.
    steps
        Steps of the optimiser.
    validation_queries
        Number of validation queries; 0: there were none.
    before, after
        Measure (``"success@1"``, ``"ndcg@10"``) to value on the validation queries; empty without them.
    interval
        95% bootstrap interval of the mean change of ``"ndcg@10"``, over groups of queries that share positives; with 0
        in it, the change may be chance. None without validation queries.
    positives, shared_positives
        Number of different positives of the validation queries, and how many of them are positives of rows that were
        trained on. With any, the change is not that of new documents.

    Examples
    --------
    >>> measures = {"ndcg@10": 0.8}, {"ndcg@10": 0.9}
    >>> interval = (0.07, 0.13)
    >>> print(TrainingReport(Path("my-model"), 1800, 57, 200, *measures, interval, 180))
    my-model: trained on 1,800 rows, 57 steps.
      ndcg@10      0.800 before, 0.900 after, on 200 queries
      none of their 180 positives was trained on
      a gain beyond chance: 95% interval of ndcg@10 [+0.070, +0.130]
    """

    model: Path
    rows: int
    steps: int
    validation_queries: int
    before: dict[str, float]
    after: dict[str, float]
    interval: tuple[float, float] | None = None
    positives: int = 0
    shared_positives: int = 0

    @property
    def measured_on(self) -> str:
        """Whether the positives of the validation queries were trained on; empty without validation."""
        if self.interval is None:
            return ""
        if not self.shared_positives:
            return f"none of their {self.positives:,} positives was trained on"
        return (
            f"{self.shared_positives:,} of their {self.positives:,} positives were trained on as well: for new "
            "documents, the change is another one. To measure it, give validation rows with positives of their own."
        )

    @property
    def verdict(self) -> str:
        """Whether the change of ``"ndcg@10"`` is beyond chance, and what to try if not; empty without validation."""
        if self.interval is None:
            return ""
        low, high = self.interval
        shown = f"95% interval of ndcg@10 [{low:+.3f}, {high:+.3f}]"
        if min(self.validation_queries, self.positives) < _LEAST_QUERIES:
            return f"too few validation queries, or positives of them, to tell a change from chance: {shown}"
        if low > 0 or high < 0:
            if low > 0:
                kind = "gain"
            else:
                kind = "loss"
            if self.shared_positives:
                where = f", with {self.shared_positives:,} of {self.positives:,} positives known from training"
            else:
                where = ""
            return f"a {kind} beyond chance{where}: {shown}"
        return (
            f"no change beyond chance: {shown}. Try more rows or epochs, a higher learning rate (1e-4), hard negatives "
            "(neighbours=7); or validate on more queries, which shows smaller changes."
        )

    def __str__(self) -> str:
        lines = [f"{self.model}: trained on {self.rows:,} rows, {self.steps:,} steps."]
        for name, value in self.before.items():
            lines.append(
                f"  {name:12} {value:.3f} before, {self.after[name]:.3f} after, on {self.validation_queries} queries"
            )
        lines += [f"  {line}" for line in (self.measured_on, self.verdict) if line]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        title = f"{self.model}: trained on {self.rows:,} rows, {self.steps:,} steps"
        rows = [
            (name, bar(f"{value:.3f}", value), bar(f"{self.after[name]:.3f}", self.after[name]))
            for name, value in self.before.items()
        ]
        if not rows:
            return fragment(title)
        caption = f"{title}; measured on {self.validation_queries:,} queries"
        return fragment(table(["measure", "before", "after"], rows, caption=caption), self.measured_on, self.verdict)


# Larger batches are trained with `CachedContrastive`, in forward passes of 32 texts, which fit into memory even with
# 512 tokens per text.
_MINI_BATCH = 32


def run_trainer(
    model: ColBERT,
    rows: TrainingSet,
    validation: Validation | None,
    options: TrainingOptions,
    on_progress: Callable[[str], None] | None = None,
    *,
    show_progress: bool = False,
) -> int:
    """Train a model in place; with validation, it ends with the weights of the best of five checkpoints."""
    from sentence_transformers import MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments
    from sentence_transformers.base.training_args import BatchSamplers
    from transformers import PrinterCallback, ProgressCallback

    checkpoints: dict[str, Any] = {"eval_strategy": "no", "save_strategy": "no"}
    if validation is not None:
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
            num_train_epochs=(options.epochs or 1) / options.passes,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            warmup_steps=0.1,
            batch_sampler=InOrder if options.neighbours else BatchSamplers.NO_DUPLICATES,  # type: ignore[arg-type]
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
            evaluator=validation,
        )
        card = model.model_card_data  # it is published with the model, but the texts need not be
        card.widget = []
        card.usage_examples = None
        card.usage_examples_display = None
        for described in card.train_datasets:
            for name in ("examples", "examples_table"):
                described.pop(name, None)
        trainer.remove_callback(PrinterCallback)  # prints to standard output
        trainer.remove_callback(ProgressCallback)
        if on_progress is not None:
            trainer.add_callback(_Progress(on_progress))
        if show_progress:
            trainer.add_callback(_Bar())
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


class _Bar(TrainerCallback):
    """Shows a bar of the steps."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the bar."""
        self._stack = ExitStack()
        self._bar = self._stack.enter_context(progress_bar(shown=True, total=state.max_steps, desc="Training"))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count a step."""
        self._bar.update(1)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the bar."""
        self._stack.close()


# Without neighbours, negatives are drawn from the first 10 ranks; neighbours are found among 10 negatives per row.
_RANKS = 10


def train(
    data: str | os.PathLike[str] | TrainingSet,
    output: str | os.PathLike[str],
    model: str | os.PathLike[str] | ColBERT | None = None,
    *,
    validation: str | os.PathLike[str] | TrainingSet | None = None,
    options: TrainingOptions | None = None,
    on_progress: Callable[[str], None] | None = None,
    show_progress: bool = False,
) -> TrainingReport:
    """Train a late-interaction model, save it, and measure it before and after.

    Rows with a teacher's scores are trained with `Distillation`, others with `Contrastive`, or with
    `CachedContrastive` if batches have more than 32 rows. The model is validated five times during training, and the
    best checkpoint is saved, which favours the change on the validation rows a little; without validation rows, the
    final model is saved. The saved model loads with `ColBERT` and in plain sentence-transformers. Its model card holds
    the measures and how the validation was split off, and none of the texts.

    Parameters
    ----------
    data
        A file or folder that `latelier.data.load_training_set` reads, or a `TrainingSet`.
    output
        Folder for the model; new or empty.
    model
        Name or folder of a model, see `TrainingOptions.start`; or a `ColBERT`, which is trained in place. Default:
        all-MiniLM-L6-v2.
    validation
        Rows to validate on, in the same forms as `data`; default: the rows of up to
        `TrainingOptions.validation_queries` queries are split off from `data` by `data.split_validation`, so that no
        passage of theirs is trained on.
    options
        How to build the model, mine, train and validate; default: ``TrainingOptions()``.
    on_progress
        A function such as `print`, called with a line of text if texts are longer than the model reads, after mining,
        for each logged loss and for each validation; default: none is called, and cut texts are a warning.
    show_progress
        Show progress bars of mining and of training on standard error.

    Returns
    -------
    TrainingReport
        Rows, steps, the measures before and after, and whether they are those of passages that were trained on.

    Raises
    ------
    MissingExtraError
        If the extra 'train' is not installed.
    InvalidArgumentError
        If `model` or `options` have another type, a row is faulty, fewer than two rows are left to train on, positives
        are equal in what the model reads of them, the output folder is not empty, rows with scores are to be mined, or
        `start`, `dims` or `device` come with a `ColBERT`.
    StorageError
        If the output folder cannot be written.
    ModelLoadError
        If the model cannot be loaded.

    Examples
    --------
    >>> import tempfile
    >>> from latelier.data import TrainingSet
    >>> from latelier.training import TrainingOptions, train
    >>> texts = {
    ...     "where is Rome?": "Rome lies on the Tiber.",
    ...     "what is rust?": "Iron and oxygen form a red oxide.",
    ... }
    >>> pairs = TrainingSet(list(texts), [[text] for text in texts.values()])
    >>> options = TrainingOptions(dims=32, device="cpu", epochs=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = train(pairs, folder, validation=pairs, options=options)
    >>> report.rows, report.steps, report.before["success@1"]
    (2, 1, 1.0)
    """
    _require_trainer()
    if options is None:
        options = TrainingOptions()
    _check(model, options)
    if isinstance(data, TrainingSet):
        rows = data
    else:
        rows = load_training_set(data)
    if validation is None:
        training, validation = split_validation(rows, options.validation_queries, options.seed)
    else:
        training = rows
        if not isinstance(validation, TrainingSet):
            validation = load_training_set(validation)
    if rows.scores is not None and (options.mine or options.neighbours):
        raise InvalidArgumentError(
            "the rows have a teacher's scores, which mined negatives would lack; leave out mine and neighbours."
        )
    _check_enough(training)
    output = as_path(output, "output")
    _prepare(output)
    encoder = build_model(model, options)
    _tell(describe_cut_texts(encoder, rows, options.seed, as_pairs=not options.head_only), on_progress)
    evaluator = make_validation(validation, training, rows, options.seed)
    before = measure(evaluator, encoder)
    if evaluator is None:
        first = np.empty(0)
    else:
        first = evaluator.per_query
    if options.mine or options.neighbours:
        training = _mine(encoder, rows, training, options, show_progress=show_progress)
        if on_progress is not None:
            on_progress(f"Mined negatives for {len(training):,} rows.")
    _check_enough(training)
    if options.head_only:
        steps = STEPS
        _distill(encoder, training, options, show_progress=show_progress)
    else:
        options = options.for_rows(len(training))
        ordered = _ordered(training, options)
        steps = run_trainer(encoder, ordered, evaluator, options, on_progress, show_progress=show_progress)
    after = measure(evaluator, encoder)
    encoder.save_pretrained(str(output))
    if evaluator is None:
        return TrainingReport(output, len(training), steps, 0, before, after)
    return TrainingReport(
        output,
        len(training),
        steps,
        len(evaluator.queries),
        before,
        after,
        evaluator.interval(first),
        evaluator.positives,
        evaluator.shared_positives,
    )


def _tell(line: str, on_progress: Callable[[str], None] | None) -> None:
    """Say a line before the first step: to `on_progress`, or as a warning."""
    if line and on_progress is not None:
        on_progress(line)
    elif line:
        warn_caller(line)


def _distill(model: ColBERT, rows: TrainingSet, options: TrainingOptions, *, show_progress: bool) -> None:
    """Add a head that learns the model's own scores of the texts of rows."""
    seen = sampled(rows, options.seed)
    documents = list(dict.fromkeys(text for own in seen.documents for text in own))
    queries = list(dict.fromkeys(seen.queries))
    distill_head(model, documents, options.dims or 128, queries, seed=options.seed, show_progress_bar=show_progress)


def build_model(model: str | os.PathLike[str] | ColBERT | None, options: TrainingOptions) -> ColBERT:
    """Return the model to train: the given `ColBERT`, or one that is loaded by name with `options`."""
    if isinstance(model, ColBERT):
        return model
    if model is None:
        name = DEFAULT_MODEL
    else:
        name = os.fspath(model)
    torch.manual_seed(options.seed)  # the weights of a new head are random
    if options.start == "colbert":
        return ColBERT(name, options.dims, options.device, trust_remote_code=options.trust_remote_code)
    trust = {"trust_remote_code": options.trust_remote_code}
    if options.dims is not None and not options.head_only:
        return ColBERT.from_dense(name, "orthogonal", options.dims, options.device, **trust)
    return load(name, device=options.device, **trust)


def _require_trainer() -> None:
    with needs_extra("Training", "train"):
        import accelerate  # noqa: F401
        import datasets  # noqa: F401


def _check(model: object, options: TrainingOptions) -> None:
    if isinstance(model, ColBERT) and (options.start, options.dims, options.device) != ("dense", None, None):
        raise InvalidArgumentError(
            "received start, dims or device together with a ColBERT; these are for a model that is given by name. "
            "Build the ColBERT with them instead."
        )


def _check_enough(training: TrainingSet) -> None:
    if len(training) < 2:
        raise InvalidArgumentError(
            f"the data leave {len(training)} row{'' if len(training) == 1 else 's'} to train on; expected at least 2. "
            "Fewer validation queries or fewer mined negatives per row leave more."
        )


def _prepare(output: Path) -> None:
    """Make the output folder and check that it can be written, before hours of training."""
    try:
        is_free = not output.exists() or (output.is_dir() and not any(output.iterdir()))
        if is_free:
            output.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=output):
                pass
    except (OSError, ValueError) as error:  # ValueError: a surrogate in the name
        raise StorageError(f"cannot write {str(output)!r}: {error}.") from error
    if not is_free:
        raise InvalidArgumentError(f"{output} holds something already; give a new folder or an empty one.")


def _mine(
    model: ColBERT, data: TrainingSet, training: TrainingSet, options: TrainingOptions, *, show_progress: bool
) -> TrainingSet:
    """Mine negatives of the rows of `training` among all documents of `data`."""
    texts = list(dict.fromkeys(text for documents in data.documents for text in documents))
    index = indexes.Flat()
    index.add(range(len(texts)), model.encode_document(texts, packed=True), texts=texts)
    ids = {text: i for i, text in enumerate(texts)}
    qrels: dict[str, dict[int, int]] = {}
    for query, documents in zip(training.queries, training.documents, strict=True):
        qrels.setdefault(query, {})[ids[documents[0]]] = 1
    # Neighbours are found among more negatives than are trained on, the hardest first.
    if options.neighbours:
        kept = max(options.mine, min(_RANKS, max(1, len(texts) // 2)))
    else:
        kept = options.mine
    return mine_hard_negatives(
        model,
        index,
        {query: query for query in qrels},
        qrels,
        negatives=kept,
        ranks=(1, kept if options.neighbours else max(_RANKS, kept)),
        seed=None if options.neighbours else options.seed,
        show_progress_bar=show_progress,
    )


def _ordered(training: TrainingSet, options: TrainingOptions) -> TrainingSet:
    """Return the rows in groups of neighbours; unchanged if `options.neighbours` is 0."""
    if not options.neighbours:
        return training
    return order_by_neighbours(
        training, options.neighbours, negatives=options.mine, passes=options.passes, seed=options.seed
    )
