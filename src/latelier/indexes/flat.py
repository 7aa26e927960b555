"""`Flat`: the exact index, which scores every document on the CPU; the reference for the recall of other indexes.

It needs no training. A search reads the whole index once, at the speed of a matrix product, which on a laptop is fast
enough for tens of thousands of documents.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.base import PathLike
from latelier.indexes.options import SearchOptions, Tokenizer
from latelier.indexes.ranking import BlockSize, score_blocks
from latelier.indexes.results import MemoryReport
from latelier.indexes.store.segments import AROUND, Part, Snapshot, TokenArray, release_memory
from latelier.indexes.stored_index import StoredIndex
from latelier.scores.maxsim import TopK, maxsim
from latelier.utils.batching import lengths_to_offsets

if TYPE_CHECKING:
    import torch

# A block of vectors, and its scores, take this share of the working memory.
_BLOCK_SHARE = 4


class Flat(StoredIndex):
    """An exact index.

    Parameters
    ----------
    path
        Folder of the index, made if it does not exist; ``None`` keeps it in memory.
    dtype
        ``"float32"`` (the default) or ``"float16"``, which halves the space and rounds each number to three digits.
        It cannot be changed later.
    read_only
        Never write; implied if the folder cannot be written.
    max_memory
        Maximum memory of the index in bytes, or as a text such as ``"512MB"``, ``"1GB"`` or ``"1GiB"``; None for no
        limit. Searches find the same, but read from files what does not fit; see `memory` and
        `latelier.indexes.stored_index`.
    keywords
        Whether a new index has a keyword index of its texts, which every search mode but ``"vectors"`` needs. None is
        True; an existing index keeps what it has.
    tokenizer
        How the keyword index cuts texts into words: ``"porter"`` (the default), without English endings;
        ``"standard"``, whole words. Neither case nor accents count; languages without spaces are cut into pairs of
        characters.
    device
        A GPU to search on, such as ``"cuda"``, which holds a copy of all vectors; ``None`` searches on the CPU.

    Raises
    ------
    IndexFormatError
        If the folder holds something else, or an index of another kind or of a newer version.
    InvalidArgumentError
        If the index in the folder has another dtype.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with Flat(folder, dtype="float16") as index:
    ...     texts = ["one", "the string one"]
    ...     index.add([1, "1"], [np.eye(2), -np.eye(2)], texts=texts)
    >>> with Flat(folder) as index:
    ...     index.search(np.array([[0.5, -1.0]]), k=1), index.get("1").text
    ([[Hit(id='1', score=1.0)]], 'the string one')
    >>> Flat()
    Flat(0 documents, in memory)
    """

    kind = "flat"
    _choices: ClassVar = {"dtype": ("float32", "float16")}
    _document_bytes = 48  # its row id and its offsets in the segment, and its position in a snapshot
    # Limits the memory of a search.
    _block: ClassVar = BlockSize(tokens=1 << 15, scores=1 << 22)

    def __init__(
        self,
        path: PathLike | None = None,
        *,
        dtype: Literal["float32", "float16"] | None = None,
        read_only: bool = False,
        max_memory: int | str | None = None,
        keywords: bool | None = None,
        tokenizer: Tokenizer | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        super().__init__(
            path,
            {"dtype": dtype},
            read_only=read_only,
            max_memory=max_memory,
            keywords=keywords,
            tokenizer=tokenizer,
            device=device,
        )

    @property
    def dtype(self) -> str:
        """Floating type of the stored vectors."""
        return str(self._storage.configuration["dtype"])

    def _encode(self, embeddings: TokenEmbeddings, into: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """See `StoredIndex._encode`."""
        return {"vectors": embeddings.vectors}

    def _layout(self, dim: int, names: Collection[str]) -> dict[str, TokenArray]:
        return {"vectors": TokenArray(np.dtype(self.dtype), (dim,))}

    def _decode(self, part: Part) -> TokenEmbeddings:
        return TokenEmbeddings(part.rows("vectors"), lengths_to_offsets(part.lengths))

    def _search(
        self, snapshot: Snapshot, parts: Sequence[Part], queries: TokenEmbeddings, best: TopK, options: SearchOptions
    ) -> None:
        if self._max_memory is None:
            plan = None
        else:
            plan = self._planned(snapshot)
        releases = plan is not None and len(plan.read) > 0
        for part in parts:
            if plan is None:
                block = self._block
            else:
                block = _block_within(plan, part, queries)
            vectors = TokenEmbeddings(part.segment.arrays["vectors"], part.segment.offsets)
            for positions, scores in score_blocks(vectors, part.positions, queries, maxsim, block):
                best.add(scores, part.segment.row_ids[positions], part.segment.numbers[positions])
                if releases:
                    release_memory(part.segment.arrays["vectors"])


def _block_within(plan: MemoryReport, part: Part, queries: TokenEmbeddings) -> BlockSize:
    """Return the size of blocks whose vectors and scores fit in the working memory."""
    share = plan.working // _BLOCK_SHARE
    size = Flat._block
    scores = min(size.scores, share // 4)
    if plan.read and len(part.positions) < len(part.segment):
        scores = min(scores, len(queries) * max(1, share // AROUND))
    return BlockSize(min(size.tokens, share // (4 * queries.dim)), scores)
