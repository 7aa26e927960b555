"""`train`: data, model, hard negatives, training, and measures before and after."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from latelier import indexes
from latelier.data import TrainingSet, load_training_set, mine_hard_negatives, order_by_neighbours
from latelier.errors import InvalidArgumentError, MissingExtraError, StorageError
from latelier.models import DEFAULT_MODEL, ColBERT, load
from latelier.training.options import TrainingOptions
from latelier.training.report import TrainingReport
from latelier.training.trainer import run_trainer
from latelier.training.validation import evaluator, measure, split_validation
from latelier.utils.checks import describe
from latelier.utils.files import as_path

__all__ = ["build_model", "train"]

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
    best checkpoint is saved; without validation rows, the final model is saved. The saved model loads with `ColBERT`
    and in plain sentence-transformers.

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
        `TrainingOptions.validation_queries` queries are split off from `data`.
    options
        How to build the model, mine, train and validate; default: ``TrainingOptions()``.
    on_progress
        A function such as `print`, called with a line of text after mining, for each logged loss and for each
        validation.
    show_progress
        Show progress bars of mining on standard error.

    Returns
    -------
    TrainingReport
        Rows, steps, and the measures before and after.

    Raises
    ------
    MissingExtraError
        If the extra 'train' is not installed.
    InvalidArgumentError
        If `model` or `options` have another type, a row is faulty, fewer than two rows are left to train on, the output
        folder is not empty, rows with scores are to be mined, or `start`, `dims` or `device` come with a `ColBERT`.
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
    >>> options = TrainingOptions(dims=32, device="cpu")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = train(pairs, folder, validation=pairs, options=options)
    >>> report.rows, report.steps, report.before["success@1"]
    (2, 1, 1.0)
    """
    _require_trainer()
    options = TrainingOptions() if options is None else options
    _check(model, options, on_progress)
    rows = _read(data)
    if validation is None:
        training, validation = split_validation(rows, options.validation_queries, options.seed)
    else:
        training, validation = rows, _read(validation)
    _check_rows(rows, training, options)
    output = as_path(output, "output")
    _prepare(output)
    encoder = build_model(model, options)
    evaluation = evaluator(validation, rows, options.seed) if len(validation) else None
    before = measure(evaluation, encoder)
    if options.mine or options.neighbours:
        training = _mine(encoder, rows, training, options, show_progress=show_progress)
        if on_progress is not None:
            on_progress(f"Mined negatives for {len(training):,} rows.")
    _check_enough(training)
    steps = run_trainer(encoder, _ordered(training, options), evaluation, options, on_progress)
    after = measure(evaluation, encoder)
    encoder.save_pretrained(str(output))
    return TrainingReport(output, len(training), steps, len(set(validation.queries)), before, after)


def build_model(model: str | os.PathLike[str] | ColBERT | None, options: TrainingOptions) -> ColBERT:
    """Return the model to train: the given `ColBERT`, or one that is loaded by name with `options`."""
    if isinstance(model, ColBERT):
        return model
    name = DEFAULT_MODEL if model is None else os.fspath(model)
    torch.manual_seed(options.seed)  # the weights of a new head are random
    if options.start == "colbert":
        return ColBERT(name, options.dims, options.device)
    if options.dims is not None:
        return ColBERT.from_dense(name, "orthogonal", options.dims, options.device)
    return load(name, device=options.device)


def _require_trainer() -> None:
    try:
        import accelerate  # noqa: F401
        import datasets  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("Training", "train") from error


def _check(model: object, options: object, on_progress: object) -> None:
    if on_progress is not None and not callable(on_progress):
        raise InvalidArgumentError(f"received {describe(on_progress)} as on_progress; expected a function, or None.")
    if not isinstance(options, TrainingOptions):
        raise InvalidArgumentError(
            f"received {describe(options)} as options; expected TrainingOptions(...), such as "
            "TrainingOptions(epochs=2)."
        )
    if model is not None and not isinstance(model, (str, os.PathLike, ColBERT)):
        raise InvalidArgumentError(
            f"received {describe(model)} as model; expected the name or folder of a model, a ColBERT, or None. Give "
            "all else by name: options=TrainingOptions(...)."
        )
    if isinstance(model, ColBERT) and (options.start, options.dims, options.device) != ("dense", None, None):
        raise InvalidArgumentError(
            "received start, dims or device together with a ColBERT; these are for a model that is given by name. "
            "Build the ColBERT with them instead."
        )


def _read(data: str | os.PathLike[str] | TrainingSet) -> TrainingSet:
    return data if isinstance(data, TrainingSet) else load_training_set(data)


def _check_rows(rows: TrainingSet, training: TrainingSet, options: TrainingOptions) -> None:
    """Check what can be checked before the model is loaded and measured."""
    if not len(rows):
        raise InvalidArgumentError("the data hold no rows; expected at least 2.")
    if rows.scores is not None and (options.mine or options.neighbours):
        raise InvalidArgumentError(
            "the rows have a teacher's scores, which mined negatives would lack; leave out mine and neighbours."
        )
    _check_enough(training)


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
    kept = max(options.mine, min(_RANKS, max(1, len(texts) // 2))) if options.neighbours else options.mine
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
