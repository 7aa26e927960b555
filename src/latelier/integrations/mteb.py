"""`MTEBSearch`: a model and an index as a search model of `mteb`, so that ``mteb.evaluate`` measures both together.

Needs the extra ``mteb``. By itself, mteb scores every document of a multi-vector model by brute force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.evaluation.evaluator import (
    MakeIndex,
    describe_index,
    fill_index,
    search_index,
    temporary_index,
)
from latelier.evaluation.measures import without_own
from latelier.indexes import IVF, Index
from latelier.models import load
from latelier.rank import rerank
from latelier.utils.checks import describe
from latelier.utils.misc import Closing, needs_extra

with needs_extra("Evaluating with mteb", "mteb"):
    from mteb._create_dataloaders import create_dataloader  # what mteb's own models read texts with
    from mteb.models.abs_encoder import get_prompt_name
    from mteb.models.model_meta import ModelMeta
    from mteb.types import PromptType

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata
    from sentence_transformers import MultiVectorEncoder


# Documents that mteb prepares at once, and that are in memory; of those with both, the picture is read if it can be.
_BATCH = {"image": 32, "text": 2048}
_QUERY = PromptType("query")
_DOCUMENT = PromptType("document")


class MTEBSearch(Closing):
    """A model and an index, as mteb's `SearchProtocol`.

    For each task, the documents are encoded into a new index in a temporary folder and searched there. The folder is
    removed before the next task, and by `close`.

    Parameters
    ----------
    model
        A `latelier.models.ColBERT`, another multi-vector model of sentence-transformers, or a name or folder for
        `latelier.models.load`.
    index
        Makes the index in a folder: `latelier.indexes.IVF`, `latelier.indexes.Flat`,
        ``functools.partial(IVF, nbits=2)``, ...
    search_options
        Further arguments of the index's `search`, such as ``{"effort": "exact"}``; default: none.
    name
        Name under which mteb keeps the results, ``"organisation/model"``; None for that of the model's card. A model
        that was never published or saved needs one, as mteb finds earlier results by it.
    prompts
        Prompts by mteb's names, such as ``"NFCorpus-query"``, ``"Retrieval-query"`` or ``"query"``, from special to
        general; None for the prompts of the model.
    ignore_identical_ids
        Leave out the document with the id of its query, as BEIR does. Tasks that need it do so by themselves (ArguAna,
        Quora, FiQA and others); others number queries and documents alike, and the document with the query's id may be
        its answer. So it is not on wherever ids are shared, as in `latelier.evaluation`, which sees by the judgements
        that no answer is left out: mteb does not hand them to a search.

    Raises
    ------
    InvalidArgumentError
        If an argument has the wrong type, or mteb hands over other inputs than texts or pictures.

    Examples
    --------
    >>> from latelier.models import ColBERT
    >>> name = "sentence-transformers/all-MiniLM-L6-v2"
    >>> model = ColBERT.from_dense(name, device="cpu")
    >>> search = MTEBSearch(model, name="me/minilm-tokens")
    >>> search.mteb_model_meta.name, search.mteb_model_meta.experiment_kwargs
    ('me/minilm-tokens', {'index': 'IVF'})

    ``mteb.evaluate(search, mteb.get_tasks(["NFCorpus"]))`` downloads the task and measures the model on it.
    """

    def __init__(
        self,
        model: MultiVectorEncoder | str,
        index: MakeIndex = IVF,
        *,
        search_options: Mapping[str, Any] | None = None,
        name: str | None = None,
        prompts: Mapping[str, str] | None = None,
        ignore_identical_ids: bool = False,
    ) -> None:
        for argument, given in (("search_options", search_options), ("prompts", prompts)):
            if not isinstance(given, (Mapping, type(None))):
                raise InvalidArgumentError(f"received {describe(given)} as {argument}; expected a dict.")
        if not isinstance(name, (str, type(None))) or name == "":
            raise InvalidArgumentError(f"received {describe(name)} as name; expected a text such as 'me/my-model'.")
        self.model: MultiVectorEncoder
        if isinstance(model, str):
            self.model = load(model)
        else:
            self.model = model
        self.make_index = index
        self.search_options = dict(search_options or {})
        self.name = name
        own: Mapping[str, str | None] = self.model.prompts
        if prompts is not None:
            own = prompts
        self.prompts = {name: prompt for name, prompt in own.items() if prompt is not None}
        self.ignore_identical_ids = ignore_identical_ids
        self._open = ExitStack()
        self._index: Index | None = None

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """The model's metadata, with the index as an experiment: mteb keeps the results of each index apart."""
        meta = ModelMeta.from_multi_vector_encoder_model(self.model)
        settings: dict[str, Any] = describe_index(self.make_index, self.search_options)
        if self.ignore_identical_ids:
            settings["ignore_identical_ids"] = True
        changes: dict[str, Any] = {"experiment_kwargs": settings}
        changes["modalities"] = [kind for kind in self.model.modalities if kind in _BATCH]
        if self.name is not None:
            changes["name"] = self.name
        return meta.model_copy(update=changes)

    def index(
        self,
        corpus: Any,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        encode_kwargs: Mapping[str, Any],
        num_proc: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Encode the documents of a task into a new index.

        Parameters
        ----------
        corpus
            The documents, as mteb hands them over: with ``id``, and ``text`` and ``title`` or ``image``.
        task_metadata
            The task, which chooses the prompt.
        encode_kwargs
            Arguments of the model's `encode_document`, such as ``batch_size``.
        num_proc
            Processes that prepare the texts; None: this one.
        hf_split, hf_subset, **kwargs
            Not used.
        """
        self.close()
        kind, documents = self._inputs(corpus, task_metadata, _DOCUMENT, num_proc)
        self._index = self._open.enter_context(temporary_index(self.make_index))
        encode = self._encoder(self.model.encode_document, task_metadata, _DOCUMENT, encode_kwargs)
        fill_index(self._index, documents, encode, at_once=_BATCH[kind])

    def search(
        self,
        queries: Any,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: Mapping[str, Any],
        top_ranked: Mapping[str, list[str]] | None = None,
        num_proc: int | None = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Search the documents, or rerank the candidates of each query.

        Parameters
        ----------
        queries
            The queries, as mteb hands them over; an instruction is appended to the text.
        task_metadata, hf_split, hf_subset, num_proc, **kwargs
            As in `index`.
        top_k
            Documents per query.
        encode_kwargs
            Arguments of the model's `encode_query`.
        top_ranked
            Query id to ids of the candidates, in reranking tasks: only these are scored, by the vectors that the index
            stores. A query without candidates has no results.

        Returns
        -------
        dict
            Query id to document id to score.

        Raises
        ------
        LatelierError
            If nothing was indexed.
        UnknownIdError
            If a candidate is not in the corpus.
        """
        if self._index is None:
            raise LatelierError("there is no index to search; call index first, as mteb does.")
        texts = dict(self._inputs(queries, task_metadata, _QUERY, num_proc)[1])
        encode = self._encoder(self.model.encode_query, task_metadata, _QUERY, encode_kwargs)
        ignored = self.ignore_identical_ids
        run: dict[str, dict[str, float]] = {}
        if top_ranked is None:
            run = search_index(self._index, texts, encode, top_k + ignored, self.search_options)
        else:
            for (query, _), vectors in zip(texts.items(), encode(list(texts.values())), strict=True):
                candidates = [id_ for id_ in top_ranked.get(query, ()) if not (ignored and id_ == query)]
                found = []
                if candidates:
                    [found] = rerank([candidates], [vectors.cpu()], [self._index.get_embeddings(candidates)], top_k)
                run[query] = {str(hit.id): hit.score for hit in found}
        if ignored:
            return {query: dict(list(row.items())[:top_k]) for query, row in without_own(run).items()}
        return run

    def close(self) -> None:
        """Close the index and remove its folder."""
        self._index = None
        self._open.close()

    def __repr__(self) -> str:
        return f"MTEBSearch({self.mteb_model_meta.name!r}, {describe_index(self.make_index, self.search_options)})"

    def _encoder(
        self, encode: Callable[..., Any], task: TaskMetadata, kind: PromptType, options: Mapping[str, Any]
    ) -> Callable[[list[Any]], Any]:
        name = get_prompt_name(self.prompts, task, kind)
        return partial(encode, prompt=None if name is None else self.prompts[name], **options)

    def _inputs(
        self, rows: Any, task: TaskMetadata, kind: PromptType, num_proc: int | None
    ) -> tuple[str, Iterator[tuple[str, Any]]]:
        """Return what rows are, text or image, and the id and input of each; texts as mteb's own models join them."""
        modalities = task.get_modalities(kind)
        modality = next((each for each in _BATCH if each in modalities and each in self.model.modalities), None)
        if modality is None:
            raise InvalidArgumentError(
                f"the {kind.value} inputs of {task.name} are {', '.join(modalities)}; expected {' or '.join(_BATCH)}, "
                "as the model reads."
            )
        size = _BATCH[modality]
        batches = create_dataloader(rows, task_metadata=task, prompt_type=kind, batch_size=size, num_proc=num_proc)
        return modality, (pair for batch in batches for pair in zip(batch["id"], batch[modality], strict=True))
