"""The bodies of requests and responses, checked by pydantic and described in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, cast, get_type_hints

from latelier.errors import InvalidArgumentError
from latelier.indexes import Cause, Change, FieldValues, ValueCount
from latelier.indexes.filters import read_filter
from latelier.indexes.options import SEARCH_DEFAULTS, SEARCH_OPTIONS, EffortName, Mode, SearchKeywords, SearchOptions
from latelier.reading.records import id_field
from latelier.retrieve import Explanation, PageMap, Retriever
from latelier.retrieve.explanation import word_maps
from latelier.utils.checks import did_you_mean, short
from latelier.utils.misc import needs_extra

with needs_extra("Serving", "serve"):
    from pydantic import (
        AfterValidator,
        BaseModel,
        BeforeValidator,
        ConfigDict,
        Field,
        StrictInt,
        StrictStr,
        create_model,
        model_validator,
    )

if TYPE_CHECKING:
    from typing_extensions import Self


def _is_unicode(text: str) -> str:
    """Reject lone surrogates, which JSON can spell but UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"it has a lone surrogate at position {error.start}, which is not a character") from error
    return text


def _has_words(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text


Name = Annotated[StrictStr, AfterValidator(_is_unicode)]
Text = Annotated[StrictStr, AfterValidator(_is_unicode), AfterValidator(_has_words)]
IntegerId: TypeAlias = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
Id: TypeAlias = Annotated[StrictStr, Field(min_length=1), AfterValidator(_is_unicode)] | IntegerId
# Ids that were stored in other ways may be longer, so that only new ones are limited.
NewId: TypeAlias = Annotated[StrictStr, Field(min_length=1, max_length=1000), AfterValidator(_is_unicode)] | IntegerId
Number = Annotated[float, Field(allow_inf_nan=False)]
Weight = Annotated[Number, Field(ge=0)]
Count = Annotated[StrictInt, Field(ge=1)]
Value: TypeAlias = Name | StrictInt | Number | bool | None

# Each wrong part of a body is an error of about a kilobyte: lists end at their first, and names are bounded.
_MOST_ITEMS = 100_000
_MOST_NAMES = 1000
T = TypeVar("T")
Many = Annotated[list[T], Field(fail_fast=True, max_length=_MOST_ITEMS)]
Some = Annotated[list[T], Field(fail_fast=True, min_length=1, max_length=_MOST_ITEMS)]
Named = Annotated[dict[Name, T], Field(max_length=_MOST_NAMES)]
Matrix: TypeAlias = Some[Some[Number]]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _has_known_names(cls, given: Any) -> Any:
        if not isinstance(given, dict) or cls.model_config.get("extra") != "forbid":
            return given
        unknown = [name for name in given if name not in cls.model_fields]
        if unknown:
            accepted = f" Accepted are {', '.join(cls.model_fields)}"
            meant = did_you_mean(unknown[0], list(cls.model_fields)) or accepted
            raise ValueError(f"received {short(unknown[0])}, which is no name here.{meant}")
        return given


class ErrorBody(_Body):
    """What went wrong."""

    type: str
    """Kind of error, such as ``UnknownIdError``."""
    message: str
    """What was received, what is accepted, and what to do."""


class ErrorResponse(_Body):
    """Every error has this form."""

    error: ErrorBody


def _is_filter(given: Any) -> Any:
    """Refuse what is no filter with the message that Python has for it."""
    if given is not None and not isinstance(given, (str, list)):
        _refused(given, ())
    return given


def _are_parameters(given: Any) -> Any:
    if not isinstance(given, (list, dict)):
        _refused("1", given)
    return given


def _refused(filter: Any, parameters: Any) -> None:
    try:
        read_filter(filter, parameters)
    except InvalidArgumentError as error:
        raise ValueError(error.fact) from error


# How a body spells the types of search options.
_TYPES: dict[Any, Any] = {
    Sequence[float]: tuple[Weight, Weight],
    int | None: Count | None,
    float | None: Number | None,
    str | Sequence[str] | None: Annotated[Name | Many[Name] | None, BeforeValidator(_is_filter)],
    Sequence[Any] | Mapping[str, Any]: Annotated[Many[Value] | Named[Value], BeforeValidator(_are_parameters)],
    Mode: Mode | None,
    EffortName | float | None: EffortName | Annotated[Number, Field(gt=0)] | None,
}
_CHOSEN = {name: kind for name, kind in get_type_hints(SearchOptions).items() if SEARCH_OPTIONS[name].for_clients}
_FIELDS: dict[str, Any] = {"k": (Count, Field(10, description="Maximum number of documents per query."))}
_FIELDS |= {
    name: (_TYPES.get(kind, kind), Field(SEARCH_DEFAULTS[name], description=SEARCH_OPTIONS[name].help))
    for name, kind in _CHOSEN.items()
}
_Chosen: Any = create_model("_Chosen", __base__=_Body, **_FIELDS)


class _Options(_Chosen):
    @model_validator(mode="after")
    def _options_of_the_mode(self) -> Self:
        for name in _CHOSEN:
            modes = SEARCH_OPTIONS[name].modes
            # Generated clients send the defaults as well; an effort or a longer reading is one more without effect.
            is_wrong = self.mode is not None and "vectors" not in modes and self.mode not in modes
            if is_wrong and getattr(self, name) != SEARCH_DEFAULTS[name]:
                listed = " and ".join(map(repr, modes))
                raise ValueError(f"{name} has no effect on mode {self.mode!r}, only on {listed}; leave it out")
        return self

    def options(self) -> SearchKeywords:
        """Return those keywords of `Retriever.search` that are not the default."""
        given = {name: getattr(self, name) for name in _CHOSEN if getattr(self, name) != SEARCH_DEFAULTS[name]}
        return cast("SearchKeywords", given)


class SearchRequest(_Options):
    """One query or several, as texts or as token vectors, with the same options."""

    query: Text | Many[Text] | None = None
    """A text, or a list of texts."""
    vectors: Many[Matrix] | None = None
    """Instead of texts: one matrix of token vectors per query."""
    offset: Annotated[StrictInt, Field(ge=0)] = 0
    """Leave out so many of the best documents: the next page begins after those that were shown."""
    include: Many[Literal["text", "metadata", "excerpt"]] = Field(["text", "metadata"])
    """What each result holds besides id and score; an excerpt takes reading the vectors of the document."""

    @model_validator(mode="after")
    def _one_kind_of_query(self) -> Self:
        if (self.query is None) == (self.vectors is None):
            raise ValueError("expected either query or vectors")
        is_for_texts = self.mode not in (None, "vectors") or self.whole_query
        if self.vectors is not None and (is_for_texts or "excerpt" in self.include):
            if "excerpt" in self.include:
                what = "an excerpt"
            else:
                what = f"mode {self.mode!r}"
            if self.whole_query:
                what = "whole_query"
            raise ValueError(f"{what} needs query, a text, rather than vectors")
        return self


class WhyNotRequest(_Options):
    """A query, a document, and the options of the search that did not find it."""

    query: Text
    id: Id


class WhyNotResponse(_Body):
    """Why a search does not find a document."""

    is_found: bool
    causes: list[Cause]
    """The decisive one first."""
    changes: list[Change]
    """Changes that would find it, tested by searching; each is enough."""
    report: str
    """All of it as a text, with a line for each change at its end."""


class SpanBody(_Body):
    """Characters of a document's text, counted in code points, and what they added to its score."""

    start: int
    end: int
    contribution: float


class ExcerptBody(_Body):
    """The part of a text that matched, as the command line, notebooks and agents show it; in code points."""

    text: str
    """The part in one line."""
    begin: int
    """The first character of the result's text after the title and headings that stand before it."""
    start: int
    """Its first character in the result's text."""
    end: int
    """The one after its last."""
    marks: list[SpanBody]
    """The words of the result's text that words of the query matched: no common words, such as "the"."""
    title: str
    """The title of the document; empty if it has none."""
    place: str
    """Page, time, headings or line; empty if it is unknown."""


class ResultResponse(_Body):
    """A document that was found."""

    id: Id
    score: float
    mean_score: float | None = None
    """The mean, over the tokens of the query's own text, of the similarity with the best token of the document; null
    without `min_mean_score`."""
    weak: bool | None = None
    """Whether the document matches less than what answers a question does: if all are weak, nothing matches well. null
    for vectors as a query, and for an index that has not learned what is weak."""
    text: str | None = None
    """The document's text, or its best passage."""
    metadata: dict[str, Any] | None = None
    start: int | None = None
    """First character of the passage in the text that was sent, without its title; null for a whole document. The last
    ``end - start`` characters of ``text`` are the passage without the title. In the text that GET returns for the
    document, a title may stand before the rest, so look for these characters from ``start`` on."""
    end: int | None = None
    """The character after its last."""
    excerpt: ExcerptBody | None = None
    """The part of ``text`` that matched, if ``include`` names it."""


class SearchResponse(_Body):
    """Best documents first, one list per query."""

    mode: Mode | None
    """The mode of the search, which its scores are of; null without a query."""
    results: list[list[ResultResponse]]
    unread: list[int]
    """For each query, how many tokens at its end the model did not read, as it is longer than the model reads; with
    `whole_query` none."""
    milliseconds: dict[str, float]
    """Time of this search in the queue, of each stage of the batch that it was part of (encode, search, read), and
    of all of it (total)."""


class DocumentBody(_Body):
    """A document to store. Other names than these are metadata, too."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    id: NewId | None = None
    """Without one, a new document gets the integer after the largest one in the index."""
    text: Text
    title: Name | None = None
    """Put before the text."""
    metadata: Named[Any] = {}
    """JSON values; filters can name the keys."""

    @model_validator(mode="before")
    @classmethod
    def _one_id(cls, given: Any) -> Any:
        """Take the other names of ids, such as _id, as files of records have them."""
        if not isinstance(given, dict):
            return given
        if len(given) > _MOST_NAMES:
            raise ValueError(f"it has {len(given):,} names, of {_MOST_NAMES:,} at most")
        try:
            own = id_field(given)
        except InvalidArgumentError as error:
            raise ValueError(error.fact) from error
        if own in (None, "id"):
            return given
        return {**{name: value for name, value in given.items() if name != own}, "id": given[own]}

    @property
    def all_metadata(self) -> dict[str, Any]:
        """The metadata, with those of other names."""
        return {**(self.model_extra or {}), **self.metadata}


class DocumentsRequest(_Body):
    """Documents that are stored in one transaction."""

    documents: Some[DocumentBody]


class IdsRequest(_Body):
    """Documents by id."""

    ids: Some[Id]


class ChangeResponse(_Body):
    """A committed change."""

    changed: int
    """Number of documents that were added, replaced or removed."""
    documents: int
    """Number of documents in the index afterwards."""
    ids: list[Id]
    """The ids of those that were added, replaced or removed, in the order of the request."""


class RecordResponse(_Body):
    """A stored document."""

    id: Id
    text: str | None
    """The whole text, after its title. White space at the end is left out if the document has a title. It is also left
    out in an index of passages, where white space before the text and between two passages is returned as spaces."""
    metadata: dict[str, Any]


class DocumentsPage(_Body):
    """Some documents of an index, in the order of insertion."""

    documents: list[RecordResponse]
    after: str | None
    """Where the next ones begin: the parameter `after` of the next request; null after the last document."""


class ExplainRequest(_Body):
    """A query and documents."""

    query: Text
    ids: Some[Id]
    starts: Many[StrictInt | None] | None = None
    """For each id, the first character of the passage to explain, as a search returns it; default: its best one."""
    whole_query: bool = False
    """As in the search."""
    similarities: bool = False
    """Return the similarity of each query token with each document token as well."""

    @model_validator(mode="after")
    def _one_start_per_id(self) -> Self:
        if self.starts is not None and len(self.starts) != len(self.ids):
            raise ValueError(f"received {len(self.starts):,} starts for {len(self.ids):,} ids")
        return self


class WordBody(_Body):
    """A word of the query, the document's word that it matched best, and what it added to the score."""

    word: str
    matched: str
    contribution: float


class WordPositions(_Body):
    """A word, and the positions of its tokens."""

    word: str
    positions: list[int]
    is_special: bool
    """Whether it is a token of the model's own, such as ``[CLS]``."""


class WordMapBody(_Body):
    """How similar the patches of a page are to a word of the query; the first map is that of the whole query."""

    word: str
    values: list[list[float]]
    """Rows times columns of the page."""


class PageBody(_Body):
    """A document that was encoded as a picture, which ``GET .../pictures/ID`` returns."""

    name: str
    """Its path and page."""
    maps: list[WordMapBody]
    reason: str
    """Why there are no maps."""

    @classmethod
    def of(cls, explanation: Explanation, page: PageMap) -> PageBody:
        """Return the maps of a page, if it is known where its vectors lie."""
        if page.patches is None:
            maps = []
        else:
            maps = word_maps(explanation)
        bodies = [WordMapBody(word=each.name, values=each.values.round(4).tolist()) for each in maps]
        return cls(name=page.name, maps=bodies, reason=page.reason)


class ExplainResponse(_Body):
    """The terms of a document's score."""

    id: Id
    score: float
    text: str
    excerpt: ExcerptBody | None
    """null for a picture."""
    words: list[WordBody]
    query_tokens: list[str]
    document_tokens: list[str]
    query_words: list[WordPositions]
    document_words: list[WordPositions]
    """The words that the tokens form."""
    similarities: list[list[float]] | None = None
    """Query tokens times document tokens."""
    page: PageBody | None = None
    """null for a text."""

    @classmethod
    def of(cls, explanation: Explanation, excerpt: dict[str, Any] | None, *, similarities: bool) -> ExplainResponse:
        """Return the response for an explanation."""
        special = explanation.special
        query_words, document_words = (
            [
                WordPositions(word=word.text, positions=list(word.positions), is_special=word.text in special)
                for word in words
            ]
            for words in (explanation.query_words, explanation.document_words)
        )
        return cls(
            id=explanation.id,
            score=explanation.score,
            excerpt=None if excerpt is None else ExcerptBody(**excerpt),
            query_words=query_words,
            document_words=document_words,
            text=explanation.text,
            words=[WordBody(**match._asdict()) for match in explanation.words()],
            query_tokens=[match.token for match in explanation.tokens],
            document_tokens=list(explanation.document_tokens),
            similarities=explanation.similarities.round(4).tolist() if similarities else None,
            page=None if explanation.page is None else PageBody.of(explanation, explanation.page),
        )


class BrowseRequest(_Body):
    """Which documents to describe."""

    filter: Name | Many[Name] | None = None
    parameters: Many[Value] | Named[Value] = []
    field: Name | None = None
    """This field only, rather than all."""
    folder: Name = ""
    """The folder whose folders are listed, with a slash at the end; empty for the top."""


class BrowseResponse(_Body):
    """What the documents that a filter selects have."""

    fields: list[FieldValues]
    types: list[ValueCount]
    """Suffixes of their files."""
    folders: list[ValueCount]
    """Folders directly in `folder` that hold their files."""
    files: list[ValueCount]
    """The first 100 paths of their files, sorted."""


class NewDocument(_Body):
    """A document that was changed or added last."""

    id: Id
    title: str
    modified: str | None
    """When its file was changed (ISO 8601); null for a document that is of no folder."""


class IndexResponse(_Body):
    """An index of the server."""

    name: str
    kind: str
    documents: int | None
    """null if the index cannot be read."""
    dim: int | None
    model: str | None
    fields: list[str]
    """Keys of the metadata, which filters can name."""
    has_words: bool = False
    """Whether a search for a text is by words too, unless it names a mode."""
    document_model: str | None = None
    """The model that filled it, if `model` is another one, which was made for the same vectors and encodes queries."""
    query_length: int | None = None
    """Tokens of a query that a search reads; null if it is unknown."""
    longest_query: int | None = None
    """Tokens of the longest query that a search with `whole_query` reads; null if it cannot read more."""
    bytes: int | None = None
    """Size of its files; null if it is unknown, or if all indexes are asked for."""
    modified: str | None = None
    """When it was last changed (ISO 8601), for an index in a folder; null as above."""
    examples: list[str] = []
    """Questions made from titles of documents of different files, to search for; only if one index is asked for."""
    newest: list[NewDocument] = []
    """Documents that were changed last, or of no folder those that were added last; as above."""
    serves_files: bool = False
    """Whether the files of its documents can be read."""
    serves_pages: bool = False
    """Whether pages of files of PDF can be had as pictures."""
    error: str | None = None
    """Why the index cannot be read; null if it can."""


class NewIndexRequest(_Body):
    """An empty index to make, in the server's folder for new ones."""

    name: Name
    """Letters, digits, ``.``, ``_`` and ``-``."""
    model: Name | None = None
    """Name of the index with the model that this one gets; default: the first index."""


class DocumentText(_Body):
    """A document as a text; its other fields are not read."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    text: Text


class RerankRequest(_Body):
    """The request of the common rerank interfaces; options that are null are as if they were left out."""

    query: Text
    documents: Some[Text | DocumentText]
    model: Name | None = None
    """Name of the index whose model ranks; default, and for any other name: the first index."""
    top_n: Count | None = None
    """Number of documents to return; default: all."""
    return_documents: bool = False
    mean_scores: bool | None = None
    """Return the mean similarity of the query's tokens, between 0 and 1, rather than their sum; default: as the server
    was started."""
    max_tokens_per_doc: Count | None = None
    """Accepted if the model reads no more tokens of a document anyway, as this is not changed here."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}

    def check_tokens(self, retriever: Retriever) -> None:
        """Refuse a limit of tokens that would have to change what the model reads."""
        (_, limit) = retriever.query_model.limits("document")
        given = self.max_tokens_per_doc
        if given is not None and (limit is None or given < limit):
            raise InvalidArgumentError(
                f"received max_tokens_per_doc={given:,}; the model reads {limit or 'any number of'} tokens of a "
                "document, which a request does not change. Leave it out, or send shorter documents."
            )


class DeletedIndex(_Body):
    """An index that was deleted."""

    name: str
    documents: int
    """How many documents it had."""


class RankedDocument(_Body):
    """A document with its place in the request."""

    index: int
    relevance_score: float
    """MaxSim: the sum over the query's tokens of the similarity with the best token of the document; or their mean."""
    document: DocumentText | None = None


class RerankResponse(_Body):
    """Best documents first."""

    model: str
    results: list[RankedDocument]
    cut: list[int]
    """Places, in the request, of documents that are longer than the model reads: the rest of each is not compared."""


class EncodeRequest(_Body):
    """Texts to encode as the token vectors of a model."""

    texts: Some[Text]
    input_type: Literal["query", "document"]
    """Queries and documents have other markers, lengths and skipped tokens."""
    model: Name | None = None
    """Name of the index whose model encodes; default: the first index."""
    dims: Count | None = None
    """Keep the first so many numbers of each vector, and normalise them again."""
    dtype: Literal["float32", "float16"] = "float32"
    format: Literal["json", "base64"] = "json"
    """Lists of numbers, or the little-endian bytes of each matrix in base64."""


class EncodeResponse(_Body):
    """One matrix of token vectors per text, of as many rows as it has scored tokens."""

    model: str
    dims: int
    dtype: str
    embeddings: list[list[list[float]] | str]
