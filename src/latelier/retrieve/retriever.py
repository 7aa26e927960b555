"""`Retriever`: text in, ranked documents out."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, overload

import numpy as np

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.indexes import IVF, Flat, Hit, Id, Index, WhyNotReport
from latelier.indexes.base import PathLike
from latelier.indexes.ivf.layout import FOLDER_BITS
from latelier.indexes.options import SEARCH_DEFAULTS, SearchKeywords, SearchOptions, check_texts
from latelier.indexes.results import CUT, in_order, stored_cut
from latelier.reading.folders import DocumentFolder, read_documents
from latelier.reading.images import Picture
from latelier.reading.records import FileDocuments, parse_documents
from latelier.retrieve.choice import Asked
from latelier.retrieve.documents import Documents
from latelier.retrieve.explaining import explain_documents
from latelier.retrieve.explanation import Explanation
from latelier.retrieve.identity import ModelIdentity
from latelier.retrieve.indexing import (
    Encoding,
    Pace,
    bounded_sizes,
    divide,
    encode,
    encode_by_workers,
    store,
)
from latelier.retrieve.passages import DocumentSettings
from latelier.retrieve.preparation import GivenRule, Write, default_passages, given_writes, read_chunks, whole_text
from latelier.retrieve.queries import EncodedQueries, Query, find
from latelier.retrieve.query_model import QueryModel, checked_queries, find_index, open_index, open_model
from latelier.retrieve.results import Results, Source, WordCounts, read_results
from latelier.retrieve.synchronisation import Synchronisation, Synchronised
from latelier.retrieve.thresholds import Threshold, estimate, learn_weak
from latelier.retrieve.weak import WeakBars
from latelier.retrieve.why_not import explain_miss
from latelier.retrieve.write_options import WRITE_DEFAULTS, WriteKeywords, WriteOptions
from latelier.scores.maxsim import maxsim
from latelier.utils.checks import check_count, check_number, did_you_mean, short
from latelier.utils.misc import NotCopied, progress_bar, show_options, warn_caller
from latelier.utils.values import as_id

if TYPE_CHECKING:
    from PIL.Image import Image
    from typing_extensions import Unpack

    from latelier.models import ColBERT


class Retriever(NotCopied):
    """Text in, ranked documents out.

    Parameters
    ----------
    model
        A model, a name or folder for `latelier.models.load`, or the folder of an exported encoder; None is
        all-MiniLM-L6-v2 as a late-interaction model without further training.
    index
        An index, or its folder: the index in it is opened, or a `latelier.indexes.IVF` of 2 bits is made there. None
        makes a `latelier.indexes.Flat` of float32 in memory.
    device
        Where to load a model given by name: ``"cpu"``, ``"cuda"``, ...; None takes the best available device.
    model_options
        Further arguments of `latelier.models.load` for a model given by name, and ``compute_dtype``, as in its
        `encode`. Lengths, `embedding_size`, `truncate_dim`, prompts, `revision` and int8 are stored with the index.
        After others (``trust_remote_code``, ...), which are not stored, `open` raises an error unless it gets a model.
        ``{"compute_dtype": "int8"}`` encodes on a CPU by ONNX Runtime (extra ``onnx``), the default model without
        torch; an index that was filled so keeps it.
    max_memory
        Memory budget of an index given by its folder, as for `latelier.indexes.IVF`, and of what `add` encodes at once.
    same_space
        Search with another model than the one that filled the index: a smaller one that was made for the vectors of the
        first, with as many dimensions. Nothing can be added with it. Given by name, it is kept in the settings of the
        index (``index.settings["queries"]``), unless that is open for reading only, and `open` takes it again.

    Raises
    ------
    InvalidArgumentError
        If the index was filled by another model.

    Examples
    --------
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add(["Bananas are healthy.", "The moon is far away."])
    >>> result = retriever.search("unhealthy fruit", k=1)[0]
    >>> result.id, result.text
    (0, 'Bananas are healthy.')
    >>> record = {"id": "paris", "text": "Capital of France.", "country": "fr"}
    >>> retriever.add([record])
    >>> found = retriever.search("city", filter="country = ?", parameters=("fr",))
    >>> [result.id for result in found]
    ['paris']
    """

    def __init__(
        self,
        model: ColBERT | PathLike | None = None,
        index: Index | PathLike | None = None,
        *,
        device: str | None = None,
        model_options: Mapping[str, Any] | None = None,
        max_memory: int | str | None = None,
        same_space: bool = False,
    ) -> None:
        opened = find_index(index, max_memory=max_memory)
        try:
            follows = opened is not None and opened is not index and not same_space
            asked = Asked(model, model_options or {}, device)
            query_model = open_model(asked, opened if follows else None)
            query_model.prepare()
            if opened is None and index is None:
                opened = Flat(max_memory=max_memory)
            elif opened is None:
                folder: Any = index
                opened = IVF(folder, nbits=FOLDER_BITS, max_memory=max_memory)
            self._start(query_model, opened, same_space)
        except LatelierError:
            if opened is not None and opened is not index:
                opened.close()
            raise

    def _start(self, model: QueryModel | Callable[[], QueryModel], index: Index, same_space: bool) -> None:
        """Take an index and its model, which is checked; or what opens the model when it is first needed."""
        self.index = index
        self._same_space = same_space
        self._lock = threading.Lock()
        self._words = WordCounts()
        self._model: QueryModel | None = None
        if isinstance(model, QueryModel):
            model.check(index, same_space=same_space)
            self._model = model
        else:
            self._open_model = model

    @classmethod
    def open(
        cls,
        path: PathLike | Index,
        *,
        model: PathLike | None = None,
        device: str | None = None,
        read_only: bool = False,
        max_memory: int | str | None = None,
        backend: Literal["auto", "onnx", "torch"] = "auto",
        trust_remote_code: bool = False,
        load_model: bool = True,
        same_space: bool = False,
    ) -> Retriever:
        """Open a folder that a retriever has filled, with the model that filled it.

        The folder may come from an untrusted source: the model that it names is loaded only if it is a text encoder in
        safetensors without code of its own, and an exported encoder only from the user's own cache folder. Pass any
        other model yourself.

        Parameters
        ----------
        path
            The index's folder; or an open index, such as `latelier.indexes.Qdrant`, which the retriever then closes.
        model
            Name or folder of a model to load instead of the one that the index names; it is loaded with the options
            that the index stores. Or the folder of an exported encoder, which needs no torch.
        device, max_memory
            As for `Retriever`.
        read_only
            Open the index for reading only.
        backend
            What encodes queries: ``"onnx"``, the encoder that `export_encoder` has put into the cache folder, without
            torch; ``"torch"``, the model; ``"auto"``, the exported encoder if there is one and ONNX Runtime is
            installed. The model is then loaded when documents are added.
        trust_remote_code
            Run the code that comes with `model`; never that of a model which only the index names.
        load_model
            False: open the model, and raise the errors of opening it, when it is first needed. A search by keywords
            and reading documents do not need it.
        same_space
            As for `Retriever`.

        Returns
        -------
        Retriever
            Ready to search.

        Raises
        ------
        IndexFormatError
            If there is no index, or its description of its model is malformed.
        InvalidArgumentError
            If the index does not name its model, the model of that name has other weights now, or the model needs
            options that are not stored or is of a kind that users must pass themselves. If there is no exported encoder
            for ``backend="onnx"``.
        ModelLoadError
            If the model no longer exists.

        Examples
        --------
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with Retriever(index=folder, device="cpu") as retriever:
        ...     retriever.add([("a", "Bananas are healthy.")])
        >>> with Retriever.open(folder, device="cpu") as retriever:
        ...     retriever.search("fruit")[0].id
        'a'
        """
        index = open_index(path, read_only=read_only, max_memory=max_memory)
        if same_space and model is None:
            raise InvalidArgumentError("received same_space=True without model=...; give the model of the queries.")
        asked = Asked(model, {}, device, backend, trust_remote_code, "open")
        opening = partial(open_model, asked, index)
        retriever = cls.__new__(cls)
        try:
            of_queries = None if model is not None else ModelIdentity.of_queries_in(index)
            same_space = same_space or of_queries is not None
            if load_model:
                opened = opening()
                opened.prepare()
                retriever._start(opened, index, same_space)
            else:
                retriever._start(opening, index, same_space)
            return retriever
        except BaseException:
            if index is not path:
                index.close()
            raise

    @property
    def model(self) -> ColBERT:
        """The model; after `open` with an exported encoder it is loaded when it is first used."""
        return self.query_model.model.loaded

    @property
    def query_model(self) -> QueryModel:
        """The model, or its exported encoder, as the functions of `latelier.retrieve` take it."""
        with self._lock:
            if self._model is None:
                model = self._open_model()
                model.prepare()
                model.check(self.index, same_space=self._same_space)
                self._model = model
            return self._model

    def source(self, *, with_model: bool) -> Source:
        """Return what results come from, as the functions of `latelier.retrieve` take it."""
        return Source(self.index, self.query_model if with_model else None, self._words)

    @property
    def model_name(self) -> str | None:
        """Name or folder of the model; None if it was given as an object."""
        return self.query_model.name

    @property
    def document_model_name(self) -> str | None:
        """With ``same_space``, name or folder of the model that filled the index, if it has one; else None."""
        if not self._same_space:
            return None
        stored = ModelIdentity.stored_in(self.index)
        if stored is None:
            return None
        return stored.name

    @property
    def model_options(self) -> dict[str, Any]:
        """The options that the model is loaded with."""
        return self.query_model.options

    def export_encoder(self) -> Path:
        """Export the model's encoder to the cache folder, so that `open` needs neither torch nor the model to search.

        Returns
        -------
        pathlib.Path
            The folder of the export. A copy of it on another machine can be given as the model.

        Raises
        ------
        InvalidArgumentError
            If the model was given as an object, or has a part that cannot be exported.
        MissingExtraError
            If a package that exporting needs is missing.

        Examples
        --------
        >>> retriever = Retriever(index="exported", device="cpu")
        >>> retriever.add(["Bananas are healthy."])
        >>> (retriever.export_encoder() / "encoder.json").name
        'encoder.json'
        """
        return self.query_model.export(self.index)

    @show_options(**WRITE_DEFAULTS)
    def add(
        self,
        documents: Iterable[Any],
        *,
        skip_existing: bool = False,
        **options: Unpack[WriteKeywords],
    ) -> None:
        """Encode and store new documents.

        Parameters
        ----------
        documents
            Any iterable, read lazily: of texts (which get the integer ids after the largest one in the index, or 0, 1,
            2, ... in an empty index); of ``(id, text)`` pairs; or of dicts with ``"text"``, optionally an id
            (``"id"`` or ``"_id"``, else ``"docid"``, ``"docno"``, ``"doc_id"`` or ``"pid"``), ``"title"`` (put before
            the text) and ``"image"`` (a path, with ``"page"`` of a PDF; bytes; an image of PIL) for models that read
            pictures; all other keys are metadata. Or a table of pandas, polars, pyarrow or DuckDB with these columns,
            documents of LangChain, LlamaIndex or Haystack, or the path of a file or a folder, of which what is new
            or changed is encoded (`synchronise` also removes).
        skip_existing
            Skip documents with an id that is in the index. Repeating an interrupted call continues it. Not of a path.
        batch_size
            Texts of maximum length per batch; batches of shorter texts hold more.
        chunk_size
            Documents, or passages, per transaction, and in memory at once; None: so many that a commit comes every
            few seconds.
        show_progress
            Show a progress bar on standard error; in a log, a line every half minute. None: a bar on a terminal or in
            a notebook, if it takes longer than two seconds.
        passages
            Cut long texts into overlapping passages: their maximum number of tokens, `Passages(max_tokens, overlap)`,
            or True for as many tokens as the model reads. False: whole documents, of which the model reads the
            beginning. None: as the index has them; a new one has passages if it is filled from files that are one text
            each, or if the model does not read one of the first 2,048 documents whole, and otherwise whole documents.
        pool_factor
            Pool about this many token vectors into one, see `latelier.models.pool_tokens`. None: as the index has them.
        precision
            Number format of the vectors in memory, as in `latelier.models.ColBERT.encode`.
        workers
            `EncodingWorkers`, or how many to start for this call; each encodes a chunk at a time. None: this process.

        Raises
        ------
        InvalidArgumentError
            If a document is none of these or has an empty text; the message gives its position. Earlier chunks stay
            stored. If `passages` or `pool_factor` differs from the index's.
        DuplicateIdError
            If an id is in the index already; `update` replaces documents.

        Examples
        --------
        >>> retriever = Retriever(device="cpu")
        >>> retriever.add([{"id": "a", "title": "Fruit", "text": "Bananas are healthy.", "year": 2019}])
        >>> retriever.add(["The moon is far away."])  # with the next number as its id
        >>> retriever.documents.ids(), retriever.documents["a"].metadata["year"]
        (['a', 0], 2019)
        >>> retriever.add([("a", "Again."), ("b", "Plums.")], skip_existing=True)
        >>> len(retriever)
        3
        """
        if _is_path(documents):
            if skip_existing:
                raise InvalidArgumentError(
                    "skip_existing=True has no effect on a path, of which what is new or changed is stored; leave it "
                    "out, or give the documents: add(read_documents(path), skip_existing=True)."
                )
            self.synchronise(documents, remove=False, **options)
        else:
            rule = GivenRule(self.index, "skip" if skip_existing else "raise")
            self._write(given_writes(documents), rule, WriteOptions.of(options), total=_length(documents))

    @show_options(**WRITE_DEFAULTS)
    def update(
        self,
        documents: Iterable[Any],
        *,
        skip_unchanged: bool = False,
        **options: Unpack[WriteKeywords],
    ) -> None:
        """Encode documents and store them, replacing those with the same ids.

        Parameters
        ----------
        documents
            As in `add`, but every document needs an id; all its passages are replaced in one commit.
        skip_unchanged
            Leave documents as they are, without encoding them, that are stored with the same text and metadata.
        **options
            As in `add`.

        Raises
        ------
        InvalidArgumentError
            As in `add`, and if a document has no id.

        Examples
        --------
        >>> retriever = Retriever(device="cpu")
        >>> retriever.add([("a", "Bananas are healthy.")])
        >>> retriever.update([("a", "Bananas are yellow."), ("b", "The moon.")])
        >>> retriever.documents["a"].text, len(retriever)
        ('Bananas are yellow.', 2)
        """
        if _is_path(documents):
            self.synchronise(documents, remove=False, **options)
        else:
            rule = GivenRule(self.index, "update", skip_unchanged=skip_unchanged)
            self._write(given_writes(documents), rule, WriteOptions.of(options), total=_length(documents))

    @show_options(**WRITE_DEFAULTS)
    def synchronise(
        self,
        source: str | os.PathLike[str] | FileDocuments,
        *,
        remove: bool = True,
        moved_from: str | os.PathLike[str] | None = None,
        **options: Unpack[WriteKeywords],
    ) -> Synchronised:
        """Bring the index up to date with a folder or a file: only what is new or changed is encoded.

        Files are compared by their status, by a hash of what they hold if that has changed or the last look was too
        soon after the change to tell, by the options of reading, and by the number of their documents in the index.

        A document is removed only if it is known to be gone: each folder down to its file was listed without an error
        at the same place as before, and one has no such entry; or the file was read whole in two runs, without it. At
        another place, and if more than half of the files are missing, this takes two runs. The documents of a file that
        has got another name keep their vectors. A document with an id that was added in another way stays as it is.

        Parameters
        ----------
        source
            A path, or what `read_documents` returns for it with other options.
        remove
            Remove documents of files that the folder does not hold any more, and lines that a text file does not hold.
        moved_from
            The path of a folder or a file that the index was filled from, and that has been moved to `source`. Default:
            none.
        **options
            As in `add`.

        Returns
        -------
        Synchronised
            How many documents were new, changed, renamed, removed, unchanged and kept, and what was skipped.

        Raises
        ------
        InvalidArgumentError
            As in `add`, and if no file of a folder can be read: a drive that is not mounted removes nothing. If
            `moved_from` is still there, or the index was not filled from it.

        Examples
        --------
        >>> from pathlib import Path
        >>> Path("notes").mkdir()
        >>> _ = Path("notes/fruit.md").write_text("Bananas are healthy.")
        >>> retriever = Retriever(device="cpu")
        >>> print(retriever.synchronise("notes"), "/", retriever.synchronise("notes"))
        1 new / 1 unchanged
        >>> _ = Path("notes/fruit.md").rename("notes/bananas.md")
        >>> print(retriever.synchronise("notes"))
        1 renamed
        """
        chosen = WriteOptions.of(options)
        if isinstance(source, FileDocuments):
            documents = source
        else:
            documents = read_documents(source)
        if documents.path is None:
            rule = GivenRule(self.index, "update", skip_unchanged=True, needs_ids=False)
            self._write(given_writes(documents), rule, chosen, are_texts=documents.are_texts, share=documents.share)
            kinds = rule.kinds
            return Synchronised(kinds["new"], kinds["changed"], 0, 0, kinds["unchanged"], 0, documents.skipped)
        if isinstance(documents, DocumentFolder) and not len(documents):
            raise InvalidArgumentError(f"no file of {documents.path} can be read, so nothing is removed.")
        run = Synchronisation(self.index, documents, documents.path, moved_from)
        read = run.read(remove=remove)
        if first := list(islice(read, 1)):  # the model is loaded only if there is something to encode
            self._write(chain(first, read), run, chosen, are_texts=documents.are_texts, share=run.share)
        elif self.index.dim is not None:  # other passages are refused all the same
            DocumentSettings.chosen(self.index, chosen.passages, chosen.pool_factor, max_length=lambda: None)
        report = run.finish(remove=remove)
        run.warn()
        return report

    def _write(
        self,
        writes: Iterator[Write],
        rule: GivenRule | Synchronisation,
        options: WriteOptions,
        *,
        are_texts: bool = False,
        total: int | None = None,
        share: Callable[[], float | None] | None = None,
    ) -> None:
        """Store documents, each transaction by itself; the rule says which, and what each commit takes with it.

        `share` returns which part of the source was read, 0 to 1, if that is known, for the bar.
        """
        model = self.query_model
        index = self.index
        model.identity.check(index)
        batch_size, size = bounded_sizes(index, model, options.batch_size, options.chunk_size or _CHUNK_SIZE)
        pace = Pace(size, adapts=options.chunk_size is None and options.workers is None)
        is_new = index.dim is None
        passages: Any = options.passages
        is_default = passages is None
        if is_default and is_new:
            writes, passages = default_passages(writes, model, size, are_texts=are_texts)
        settings = DocumentSettings.chosen(
            index, passages, options.pool_factor, max_length=lambda: model.limits("document")[1]
        )
        encoding = Encoding(options.resolved(batch_size, settings))
        unread: list[int] = []
        with progress_bar(shown=options.show_progress, total=total, desc="Indexing", unit=" documents") as bar:
            chosen = _chosen(_estimated(read_chunks(writes, model, size), share, bar), rule, bar)
            transactions = divide(chosen, model, settings.passages, pace)
            if options.workers is None:
                encoded = encode(model, transactions, size, bar, encoding)
            else:
                encoded = encode_by_workers(options.workers, model, transactions, size, bar, encoding)
            for transaction, vectors in encoded:
                if is_new:
                    model.identity.store_in(index)
                    settings.store_in(index)
                    is_new = False
                stored = transaction.writes
                left = store(transaction, vectors, index, rule.changes(stored), replace=rule.replace)
                rule.stored(stored, left)
                pace.committed(transaction)
                if settings.passages is None:
                    unread += transaction.unread(model)
        if unread:
            index.settings[CUT] = stored_cut(index.settings) + len(unread)
        if unread and is_default:
            warn_caller(
                f"{len(unread):,} document{' is' if len(unread) == 1 else 's are'} longer than the model reads "
                f"({model.limits('document')[1]} tokens): "
                f"{sum(unread):,} tokens at their ends are not searched; fill a new index with passages=True, or say "
                "passages=False."
            )

    @property
    def documents(self) -> Documents:
        """The documents of the index, as a collection by id.

        Examples
        --------
        >>> retriever = Retriever(device="cpu")
        >>> retriever.add([("a", "Bananas are healthy.")])
        >>> retriever.documents["a"].text, "b" in retriever.documents
        ('Bananas are healthy.', False)
        """
        return Documents(self.index)

    def remove(self, ids: Id | Iterable[Id]) -> None:
        """Remove documents with all their passages, all or none.

        Parameters
        ----------
        ids
            One id or several.

        Raises
        ------
        UnknownIdError
            If an id is not in the index.

        Examples
        --------
        >>> retriever = Retriever(device="cpu")
        >>> retriever.add([("a", "Bananas are healthy."), ("b", "The moon.")])
        >>> retriever.remove("a")
        >>> retriever.documents.ids()
        ['b']
        """
        self.index.remove(ids)

    @overload
    def search(self, texts: str, k: int = 10, **options: Unpack[SearchKeywords]) -> Results: ...

    @overload
    def search(
        self, texts: list[str] | tuple[str, ...], k: int = 10, **options: Unpack[SearchKeywords]
    ) -> list[Results]: ...

    @overload
    def search(self, texts: Image, k: int = 10, **options: Unpack[SearchKeywords]) -> Results: ...

    @show_options(**SEARCH_DEFAULTS)
    def search(
        self,
        texts: str | list[str] | tuple[str, ...] | Image,
        k: int = 10,
        **options: Unpack[SearchKeywords],
    ) -> Results | list[Results]:
        """Find the best documents for one query or several.

        Parameters
        ----------
        texts
            One query, or a list of them; or an image of PIL, for a model that reads pictures.
        k
            Maximum number of documents per query.
        mode
            ``"vectors"``: MaxSim. ``"keywords"``: BM25, which needs no model. ``"hybrid"``: both, fused. ``"rerank"``:
            the best `depth` documents by keywords, ordered by MaxSim. None (the default): ``"hybrid"`` for a text, if
            the index stores texts and has a keyword index; otherwise ``"vectors"``. `Results.mode` is the one used.
        fusion, weights, depth
            How ``"hybrid"`` and ``"rerank"`` combine them, with the defaults of `Index.search`.
        filter, parameters, filter_timeout
            An SQL expression over metadata, or several that must all hold; the values of their ``?``; the time limit
            in seconds; see `Index.search`. Default: all documents.
        effort, nprobe, candidates
            How much an approximate index such as `latelier.indexes.IVF` searches, with the defaults of `Index.search`.
        min_score, min_mean_score
            The least score, and the least `mean_score` (see `Result`), of a document; ``docs/scores.md`` says how to
            choose them. None for no limit. A least score needs a `mode`, unless that is ``"vectors"`` anyway: those of
            ``"hybrid"`` are from 0 to 1 whatever is found. With `min_mean_score`, results have a `mean_score`.
        whole_query
            Read queries beyond the model's query length, as far as its positions reach, 8,192 tokens at most: a longer
            one is an error. Without it, `Results.unread` says how many tokens were not read.

        Returns
        -------
        Results or list of Results
            Lists of `Result`, best first: one for one query, a list of them for a list of queries.

        Raises
        ------
        InvalidArgumentError
            If a query is empty or not a text, `k` or the filter is invalid, or the index has no such option.
        FilterTimeoutError
            If the filter takes too long.
        LatelierError
            If the mode needs keywords, and the index has no keyword index or no texts.

        Examples
        --------
        >>> retriever = Retriever(device="cpu")
        >>> retriever.add([{"id": "a", "text": "Bananas are healthy.", "year": 2019}, {"id": "b", "text": "The moon."}])
        >>> [result.id for result in retriever.search("fruit", k=1)]
        ['a']
        >>> [[result.id for result in each] for each in retriever.search(["fruit", "planets"], k=1)]
        [['a'], ['b']]
        >>> retriever.search("fruit", filter="year < ?", parameters=[2000])
        []
        """
        is_picture = hasattr(texts, "getbands")  # of PIL
        queries = [] if is_picture else checked_queries(texts)
        k = check_count("k", k)
        chosen = self.index.checked_options(options, is_text=not is_picture)
        if not (queries or is_picture):
            return []
        if is_picture:
            check_texts(None, chosen.mode)
            encoded = self._encode_picture(Picture.of(texts), chosen)
        else:
            encoded = self._encode(queries, chosen, with_own=chosen.min_mean_score is not None)
        asked = [encoded.query(row, is_whole=chosen.whole_query) for row in range(len(encoded))]
        with self.index.snapshot():
            results = read_results(
                self.source(with_model=encoded.vectors is not None), asked, find(self.index, encoded, k, chosen)
            )
            for result in results:
                result.mode = chosen.mode
            if chosen.mode != "vectors":
                for result, query in zip(results, queries, strict=False):
                    result.did_you_mean = self.index.near_words(query)
        if encoded.vectors is not None and not chosen.whole_query:
            for result, tokens in zip(results, self.query_model.unread(queries, "query"), strict=False):
                result.unread = tokens
        if isinstance(texts, str) or is_picture:
            return results[0]
        return results

    def _encode(self, texts: list[str], options: SearchOptions, *, with_own: bool) -> EncodedQueries:
        """Return queries as a search with these options takes them; for keywords the model is left unopened."""
        if options.mode == "keywords":
            return EncodedQueries(texts)
        return self.query_model.encode_for_search(texts, whole=options.whole_query, with_own=with_own)

    def _encode_picture(self, picture: Picture, options: SearchOptions) -> EncodedQueries:
        vectors = self.query_model.encode_picture(picture)
        return EncodedQueries([], vectors, None if options.min_mean_score is None else vectors)

    @show_options(**SEARCH_DEFAULTS)
    def run(
        self,
        queries: Mapping[str, str],
        k: int = 100,
        *,
        excluded: Mapping[str, Collection[str]] | None = None,
        **options: Unpack[SearchKeywords],
    ) -> SearchRun:
        """Search many queries and return a run, as `latelier.evaluation.evaluate` takes it.

        Parameters
        ----------
        queries
            Query id to text.
        k
            Documents per query.
        excluded
            Query id to the ids, as str, of documents that do not count for it, such as ``excluded`` of a collection:
            they are left out, and others are found in their place. Default: none.
        **options
            As in `search`.

        Returns
        -------
        dict
            Query id to document id (as str) to score. Its `settings` say what it was made with: the model, lengths,
            prompts, the index, options, and the share of queries and documents that the model does not read whole.

        Raises
        ------
        InvalidArgumentError
            As in `search`.

        Examples
        --------
        >>> retriever = Retriever(device="cpu")
        >>> retriever.add([("a", "Bananas are healthy."), ("b", "The moon.")])
        >>> run = retriever.run({"q1": "fruit"})
        >>> {query: list(found) for query, found in run.items()}
        {'q1': ['a', 'b']}
        >>> run.settings["index"], run.settings["query_length"]
        ('Flat', 512)
        """
        begin = time.perf_counter()
        texts = checked_queries(queries.values())
        chosen = self.index.checked_options(options, is_text=True)
        k = check_count("k", k)
        if not texts:
            return SearchRun({}, {})
        encoded = self._encode(texts, chosen, with_own=chosen.min_mean_score is not None)
        with self.index.snapshot():
            left_out = {query: frozenset(ids) for query, ids in (excluded or {}).items() if query in queries}
            found = find(self.index, encoded, k + max(map(len, left_out.values()), default=0), chosen)
            run = {}
            for query, row in zip(queries, found, strict=True):
                scores = {str(each.hit.id): each.hit.score for each in row}
                counted = [(id, score) for id, score in scores.items() if id not in left_out.get(query, ())]
                run[query] = dict(counted[:k])
        seconds = {"seconds": round(time.perf_counter() - begin, 3)}
        return SearchRun(run, self._settings(texts, k, chosen) | seconds)

    def _settings(self, texts: Sequence[str], k: int, options: SearchOptions) -> dict[str, Any]:
        """Return what the results of queries depend on, as JSON values; nothing of the model for keywords alone."""
        model = None if options.mode == "keywords" else self.query_model
        settings = search_settings(model, self.index, texts, k, options)
        if model is not None and self._same_space:
            settings["document_model"] = self.document_model_name
        return settings

    def explain(self, query: str, id: Id, *, whole_query: bool = False) -> Explanation:
        """Explain the score of one document: which of its words matched which word of the query.

        Parameters
        ----------
        query
            One query.
        id
            A document of the index.
        whole_query
            As in `search`.

        Returns
        -------
        Explanation
            Prints as a table; its score equals that of a search by vectors, up to rounding. It also has the characters
            of the texts that matched, a page (`Explanation.to_html`) and a figure (`Explanation.figure`).

        Raises
        ------
        UnknownIdError
            If the document is not in the index.
        LatelierError
            If the document was stored without its text, or its tokens were pooled.

        Examples
        --------
        >>> retriever = Retriever(device="cpu")
        >>> retriever.add([("a", "Bananas are healthy.")])
        >>> explanation = retriever.explain("fruit", "a")
        >>> ("fruit", "bananas") in [(match.word, match.matched) for match in explanation.words()]
        True
        """
        asked = self.read_query(query, is_whole=whole_query)
        return explain_documents(self.query_model, self.index, asked, [as_id(id)])[0]

    def read_query(self, text: str, *, is_whole: bool = False) -> Query:
        """Return a query as a search by vectors reads it."""
        [text] = checked_queries([text], "query")
        encoded = self.query_model.encode_for_search([text], whole=is_whole, with_own=False)
        return encoded.query(0, is_whole=is_whole)

    @overload
    def rerank(self, query: str, texts: Iterable[str], k: int | None = None) -> Ranked: ...

    @overload
    def rerank(self, query: str, texts: Any, k: int | None = None) -> Any: ...

    def rerank(self, query: str, texts: Any, k: int | None = None, **others: Any) -> Any:
        """Order documents, which need not be in the index, by their score for a query.

        Parameters
        ----------
        query
            One query.
        texts
            The texts, such as the best documents of another search engine; or dicts or a data frame of pandas with
            ``text`` and, if there is one, ``title``, which stands before it.
        k
            Maximum number of texts to return; None returns all.

        Returns
        -------
        list of Hit
            The position of each text, from 0, as its id; best first, equal scores in the order of `texts`. Its `cut`
            holds the positions of texts that are longer than the model reads. Or the dicts, with their ``"score"``, or
            the rows of the data frame, with a column ``score``, and ``rank`` counted anew from 0 if it has one.

        Raises
        ------
        InvalidArgumentError
            If the query or a text is empty or not a text, or `k` is not a positive integer.

        Examples
        --------
        >>> retriever = Retriever(device="cpu")
        >>> texts = ["The moon is far.", "Bananas are healthy."]
        >>> [hit.id for hit in retriever.rerank("fruit", texts)]
        [1, 0]
        >>> found = [{"id": "a", "text": texts[0]}, {"id": "b", "text": texts[1]}]
        >>> retriever.rerank("fruit", found, k=1)[0]["id"]
        'b'
        """
        for name in others:
            raise InvalidArgumentError(f"rerank has no option {short(name)}, only k.{did_you_mean(name, ['k'])}")
        are_records = hasattr(texts, "iloc")
        if isinstance(texts, Iterable) and not hasattr(texts, "columns") and not isinstance(texts, (str, Mapping)):
            texts = list(texts)
            are_records = bool(texts) and isinstance(texts[0], Mapping)
        if not are_records:
            return rank_texts(self.query_model, query, texts, k)
        ranked = rank_texts(self.query_model, query, [whole_text(each) for each in parse_documents(texts)], k)
        return in_order(texts, [int(hit.id) for hit in ranked], [hit.score for hit in ranked])

    @show_options(**SEARCH_DEFAULTS)
    def why_not(self, query: str, id: Id, k: int = 10, **options: Unpack[SearchKeywords]) -> WhyNotReport:
        """Return why a search does not find a document, and which changes would find it.

        Parameters
        ----------
        query, id
            One query and the document.
        k, **options
            Those of `search`: `mode`, `filter`, `parameters` and all others.

        Returns
        -------
        WhyNotReport
            The causes and the changes, tested by searching; what was left out of a long text is encoded to examine it.

        Examples
        --------
        >>> retriever = Retriever(device="cpu")
        >>> retriever.add([("a", "Bananas are healthy."), ("b", "The moon.")])
        >>> report = retriever.why_not("a planet and its moon", "a", k=1)
        >>> report.causes[0].kind, str(report.changes[0])
        ('no_query_word', 'search with k=2')
        """
        return explain_miss(self.query_model, self.index, query, id, k, **options)

    def estimate_threshold(self, share: float = 0.05, *, queries: int = 200) -> Threshold:
        """Estimate from the documents a `min_mean_score` that leaves out irrelevant ones.

        Pieces of a few words out of the documents stand for questions. The document that a piece is from is left out,
        so the best of the others is what a question without an answer would find. Some of them do answer the piece,
        which makes the threshold rather too high than too low.

        Parameters
        ----------
        share
            The share of questions without an answer for which a document may be found all the same, at most 0.5.
        queries
            Number of pieces of documents that stand for such questions, at least 20.

        Returns
        -------
        Threshold
            The threshold and its interval; prints as one line.

        Raises
        ------
        LatelierError
            If the index has fewer than two documents, or none with a text.

        Examples
        --------
        >>> retriever = Retriever(device="cpu")
        >>> retriever.add([("a", "Bananas are healthy."), ("b", "The moon is far.")])
        >>> threshold = retriever.estimate_threshold(0.5).min_mean_score
        >>> [hit.id for hit in retriever.search("fruit", min_mean_score=threshold)]
        ['a']
        """
        share = check_number("share", share, most=0.5)
        return estimate(self.query_model, self.index, share, check_count("queries", queries, 20))

    def learn_weak(self) -> WeakBars:
        """Learn which results are weak, and store it with the index: from then on `search` says so, see `Result`.

        Pieces of the documents, of several lengths, are searched for in the others. What answers a question seldom
        matches less than nearly all pieces do, and what is closest to a question about something else mostly does. The
        command ``latelier index`` calls this for a new index, and again once the index has doubled.

        Returns
        -------
        WeakBars
            What is stored: a bar for vectors and one for keywords, over the number of words of a question.

        Raises
        ------
        LatelierError
            As in `estimate_threshold`, and if the documents give fewer than 20 pieces of text.

        Examples
        --------
        >>> retriever = Retriever(device="cpu")
        >>> retriever.add(f"Ship {n} came from port {n} with rice." for n in range(20))
        >>> _ = retriever.learn_weak()
        >>> [retriever.search(q, k=1)[0].weak for q in ("ship with rice", "love")]
        [False, True]
        """
        return learn_weak(self.query_model, self.index)

    def close(self) -> None:
        """Close the index.

        Examples
        --------
        >>> with Retriever(index="fruit", device="cpu") as retriever:  # closes it at the end
        ...     retriever.add(["Bananas are healthy."])
        >>> retriever = Retriever.open("fruit", device="cpu")
        >>> retriever.close()
        """
        self.index.close()

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        if self._model is None:
            model = "a model not opened yet"
        elif self._model.name:
            model = repr(self._model.name)
        else:
            model = f"ColBERT(dim={self._model.dim})"
        return f"Retriever({model}, {self.index!r})"


def _is_path(documents: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Whether documents are those of a file or a folder, rather than an iterable."""
    return isinstance(documents, os.PathLike) or (isinstance(documents, str) and Path(documents).exists())


def _length(documents: Any) -> int | None:
    """Return how many documents there are, for a progress bar; None if nobody knows."""
    if isinstance(documents, Sized):
        return len(documents)
    return None


def _estimated(
    chunks: Iterable[list[Write]], share: Callable[[], float | None] | None, bar: Any
) -> Iterator[list[Write]]:
    """Yield chunks; the bar's total is how many documents there are if the rest of the source has as many."""
    count = 0
    for chunk in chunks:
        count += len(chunk)
        read = share() if share is not None else None
        if read:
            bar.total = round(count / read)
        yield chunk


def _chosen(chunks: Iterable[list[Write]], rule: GivenRule | Synchronisation, bar: Any) -> Iterator[list[Write]]:
    """Yield of each chunk what is stored; the bar counts the others at once."""
    for chunk in chunks:
        chosen = rule.choose(chunk)
        bar.update(len(chunk) - len(chosen))
        yield chosen


_CHUNK_SIZE = 2048  # documents that are read and checked at once


def retriever_of(model: QueryModel | Callable[[], QueryModel], index: Index) -> Retriever:
    """Return a retriever with an opened model, or with what opens it when it is first needed."""
    retriever = Retriever.__new__(Retriever)
    retriever._start(model, index, same_space=False)
    return retriever


def rank_texts(model: QueryModel, query: str, texts: Iterable[str], k: int | None) -> Ranked:
    """Order texts by their score for a query, with a model and no index; see `Retriever.rerank`."""
    check_count("k", k, optional=True)
    documents = checked_queries(texts, "texts")
    vectors = model.encode_queries(checked_queries([query], "query"))
    if not documents:
        return Ranked()
    # By an exported encoder, if there is one: the model and torch would be loaded for a minute.
    embeddings = model.queries.encode(documents, "document")
    scores = maxsim(vectors, embeddings)[0]
    ranked = Ranked(Hit(int(i), float(scores[i])) for i in np.argsort(-scores, kind="stable")[:k])
    ranked.query_tokens = 1 if model.is_mean else len(vectors[0])
    ranked.cut = [i for i, tokens in enumerate(model.unread(documents, "document")) if tokens]
    return ranked


class Ranked(list[Hit]):
    """Ranked texts, best first; `cut`: positions of those texts that are longer than the model reads.

    `query_tokens`: the number of similarities that a score is the sum of; 1 if the scores are means.
    """

    cut: Sequence[int] = ()
    query_tokens: int = 1


class SearchRun(dict[str, dict[str, float]]):
    """A run, query id to document id to score, and the settings that it was made with, see `search_settings`."""

    def __init__(self, run: Mapping[str, dict[str, float]], settings: Mapping[str, Any]) -> None:
        super().__init__(run)
        self.settings = dict(settings)


def search_settings(
    model: QueryModel | None, index: Index, texts: Sequence[str], k: int, options: SearchOptions
) -> dict[str, Any]:
    """Return what the results of queries depend on, as JSON values; `model`: None if it is not used."""
    documents = DocumentSettings.stored_in(index)
    given = {name: value for name, value in vars(options).items() if value != SEARCH_DEFAULTS[name]}
    if "effort" in index.search_options:
        given["effort"] = options.effort or "balanced"
    if documents.passages is not None:
        given["passages"] = documents.describe_passages()
    count = len(index)
    return {
        **({} if model is None else model.settings),
        "index": type(index).__name__,
        "bits": getattr(index, "nbits", None) or {"float32": 32, "float16": 16}.get(getattr(index, "dtype", "")),
        "pool_factor": documents.pool_factor,
        "mode": options.mode,
        **{name: value if isinstance(value, (int, float, str)) else repr(value) for name, value in given.items()},
        "k": k,
        "queries": len(texts),
        "documents": count,
        "queries_cut": 0.0
        if model is None or options.whole_query
        else round(sum(map(bool, model.unread(texts, "query"))) / len(texts), 4),
        "documents_cut": round(min(stored_cut(index.settings) / max(count, 1), 1.0), 4),
    }
