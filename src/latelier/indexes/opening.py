"""`open`: opens the index in a folder, of any kind that is safe to open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from latelier.errors import IndexFormatError
from latelier.indexes.base import Index, PathLike
from latelier.indexes.flat import Flat
from latelier.indexes.ivf import IVF
from latelier.indexes.store.folder import as_folder, looking_into
from latelier.indexes.store.storage import stored_settings

if TYPE_CHECKING:
    import torch

    from latelier.indexes.sharded import Sharded

_SHARDED = "sharded"
_KINDS = (Flat.kind, IVF.kind, _SHARDED)


def open(
    path: PathLike,
    *,
    read_only: bool = False,
    max_memory: int | str | None = None,
    device: str | torch.device | None = None,
) -> Index:
    """Open the index in a folder, of any kind but `Qdrant`, whose local mode would run code of a hostile folder.

    Parameters
    ----------
    path
        The folder.
    read_only
        Never write.
    max_memory
        Maximum memory of the index in bytes, or as a text such as ``"1GB"``; None for no limit; see `Flat` and `IVF`.
    device
        A GPU to search on, such as ``"cuda"``; ``None`` searches on the CPU.

    Returns
    -------
    Index
        An instance of the class that made the index.

    Raises
    ------
    IndexFormatError
        If there is no index, or if this version does not know its kind or format.

    Examples
    --------
    >>> import tempfile
    >>> from latelier import indexes
    >>> folder = tempfile.mkdtemp()
    >>> indexes.Flat(folder).close()
    >>> with indexes.open(folder) as index:
    ...     type(index).__name__, len(index)
    ('Flat', 0)
    """
    folder = as_folder(path)
    with looking_into(folder):
        is_qdrant = (folder / "meta.json").is_file() and (folder / "collection").is_dir()
    if is_qdrant:
        raise IndexFormatError(
            f"{path} is a folder of Qdrant's local mode, not an index of this library.", advice="open-qdrant"
        )
    kind = stored_settings(folder).get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise IndexFormatError(
            f"the index in {path} is of kind {kind!r}, but this version of latelier knows {', '.join(_KINDS)}; upgrade "
            "with: pip install --upgrade latelier"
        )
    if kind == Flat.kind:
        opened: type[Flat] | type[IVF] | type[Sharded] = Flat
    else:
        opened = IVF
    if kind == _SHARDED:
        from latelier.indexes.sharded import Sharded as opened  # a search of the other kinds does without its modules
    return opened(path, read_only=read_only, max_memory=max_memory, device=device)
