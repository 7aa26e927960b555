"""Write options: how documents are cut, encoded and stored; their defaults, ranges and help, for every surface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypedDict

from latelier.arrays import DTYPES
from latelier.errors import InvalidArgumentError
from latelier.utils.checks import check_choice, check_count, did_you_mean, short

if TYPE_CHECKING:
    from latelier.retrieve.passages import DocumentSettings, Passages
    from latelier.retrieve.workers import EncodingWorkers


@dataclass(frozen=True)
class WriteOption:
    """What the surfaces need to know of one option of a write; its type and its default are those of the field."""

    help: str
    least: int | None = None
    shell_help: str | None = None  # on a command line, if it is typed in another form


def _option(help: str, **more: Any) -> dict[str, WriteOption]:
    return {"option": WriteOption(help, **more)}


class WriteKeywords(TypedDict, total=False):
    """The keywords of `Retriever.add`, `update` and `synchronise`: the fields of `WriteOptions`."""

    batch_size: int
    chunk_size: int | None
    show_progress: bool | None
    passages: Passages | int | bool | None
    pool_factor: int | None
    precision: str | None
    workers: EncodingWorkers | int | None


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write, checked, see `Retriever.add`: the one table of their defaults, ranges and help."""

    batch_size: int = field(default=32, metadata=_option("Texts of maximum length per batch.", least=1))
    chunk_size: int | None = field(
        default=None,
        metadata=_option(
            "Documents, or passages, per transaction; default: so many that a commit comes every few seconds.", least=1
        ),
    )
    show_progress: bool | None = field(default=None, metadata=_option("Show a progress bar on standard error."))
    passages: Passages | int | bool | None = field(
        default=None,
        metadata=_option(
            "Cut long texts into passages.",
            shell_help="Cut texts into passages of at most N tokens; auto: as the model reads, at most 512; none: "
            "whole; late or late:N: with vectors that have seen what stands around the passage. Default: as the index; "
            "a new one has passages if its files are one text each, or the model does not read the first records "
            "whole.",
        ),
    )
    pool_factor: int | None = field(
        default=None,
        metadata=_option("Pool about N token vectors of a document into one; default: as the index, or 1.", least=1),
    )
    precision: str | None = field(
        default=None,
        metadata=_option(
            "Number format of vectors until stored: float32, float16, bfloat16, int8; default: the model's."
        ),
    )
    workers: EncodingWorkers | int | None = field(
        default=None,
        metadata=_option(
            "Encode in N processes, on all machines of a Ray cluster (extra: ray); default: in this one.", least=1
        ),
    )

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_count("chunk_size", self.chunk_size, optional=True)
        check_count("pool_factor", self.pool_factor, optional=True)
        check_choice("precision", self.precision, DTYPES, optional=True)

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> WriteOptions:
        """Return the options that are given as keywords, checked."""
        for name in keywords:
            if name not in WRITE_OPTIONS:
                raise InvalidArgumentError(
                    f"storing documents has no option {short(name)}; its options are {', '.join(WRITE_OPTIONS)}."
                    f"{did_you_mean(name, [*WRITE_OPTIONS])}"
                )
        return cls(**keywords)

    def resolved(self, batch_size: int, settings: DocumentSettings) -> WriteOptions:
        """Return the options with what the memory and the settings of an index say."""
        return replace(self, batch_size=batch_size, pool_factor=settings.pool_factor, passages=settings.passages)


WRITE_OPTIONS: dict[str, WriteOption] = {each.name: each.metadata["option"] for each in fields(WriteOptions)}
"""What there is to know of each option of a write, by its name."""
WRITE_DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(WriteOptions)}
