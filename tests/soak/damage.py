"""Ways in which a file of an index comes to harm."""

import random
from pathlib import Path

_PAGE = 4096


def damage(rng: random.Random, folder: Path) -> str:
    """Damage one file of an index, and say how."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    # Half of them as likely as they are large, half of them alike: the small ones count.
    sizes = [path.stat().st_size + 1 for path in files] if rng.random() < 0.5 else None
    [path] = rng.choices(files, sizes)
    way = rng.choices(list(_WAYS), [12, 1, 1, 1, 1, 1, 1, 1, 1])[0]
    said = _WAYS[way](rng, path, files)
    return f"{path.relative_to(folder)}: {way} {said}"


def _flip(rng: random.Random, path: Path, files: list[Path]) -> str:
    data = bytearray(path.read_bytes())
    if not data:
        return "of an empty file"
    # Half of the positions among the headers of arrays and of SQLite.
    place, bit = rng.randrange(min(len(data), rng.choice([160, len(data)]))), rng.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return f"{bit} of byte {place}"


def _cut(rng: random.Random, path: Path, files: list[Path]) -> str:
    data = path.read_bytes()
    left = rng.randrange(len(data) + 1)
    path.write_bytes(data[:left])
    return f"to {left} of {len(data)} bytes"


def _grow(rng: random.Random, path: Path, files: list[Path]) -> str:
    more = rng.choice([1, 64, _PAGE])
    path.write_bytes(path.read_bytes() + rng.randbytes(more))
    return f"by {more} bytes"


def _zero(rng: random.Random, path: Path, files: list[Path]) -> str:
    return _overwrite(rng, path, bytes(_PAGE))


def _scribble(rng: random.Random, path: Path, files: list[Path]) -> str:
    return _overwrite(rng, path, rng.randbytes(rng.choice([8, 64, _PAGE])))


def _overwrite(rng: random.Random, path: Path, block: bytes) -> str:
    data = bytearray(path.read_bytes())
    place = rng.randrange(len(data) + 1) // len(block) * len(block)
    block = block[: len(data) - place]
    data[place : place + len(block)] = block
    path.write_bytes(data)
    return f"{len(block)} bytes from {place}"


def _swap(rng: random.Random, path: Path, files: list[Path]) -> str:
    other = rng.choice([file for file in files if file.parent != path.parent] or files)
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)
    return f"with {'/'.join(other.parts[-2:])}"


def _copy(rng: random.Random, path: Path, files: list[Path]) -> str:
    other = rng.choice([file for file in files if file.name == path.name])
    path.write_bytes(other.read_bytes())
    return f"from {'/'.join(other.parts[-2:])}"


def _delete(rng: random.Random, path: Path, files: list[Path]) -> str:
    path.unlink()
    return ""


def _empty(rng: random.Random, path: Path, files: list[Path]) -> str:
    path.write_bytes(b"")
    return ""


_WAYS = {
    "flip bit": _flip,
    "cut": _cut,
    "grow": _grow,
    "zero": _zero,
    "scribble": _scribble,
    "swap": _swap,
    "copy": _copy,
    "delete": _delete,
    "empty": _empty,
}
