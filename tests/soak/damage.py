"""Ways in which a file of an index comes to harm."""

import random
from pathlib import Path

_PAGE = 4096
_WAYS = {"flip": 12} | dict.fromkeys(("cut", "grow", "zero", "scribble", "swap", "copy", "delete", "empty"), 1)


def damage(rng: random.Random, folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    # Half of them as likely as they are large, half of them alike: the small ones count.
    sizes = [path.stat().st_size + 1 for path in files] if rng.random() < 0.5 else None
    [path] = rng.choices(files, sizes)
    [way] = rng.choices(list(_WAYS), list(_WAYS.values()))
    data, other = bytearray(path.read_bytes()), path
    place = rng.randrange(len(data) + 1)
    if way == "flip" and data:
        # Half of the positions among the headers of arrays and of SQLite.
        place = rng.randrange(min(len(data), rng.choice([160, len(data)])))
        data[place] ^= 1 << rng.randrange(8)
    elif way == "cut":
        del data[place:]
    elif way == "grow":
        data += rng.randbytes(rng.choice([1, 64, _PAGE]))
    elif way in ("zero", "scribble"):
        block = bytes(_PAGE) if way == "zero" else rng.randbytes(rng.choice([8, 64, _PAGE]))
        place = place // len(block) * len(block)
        data[place : place + len(block)] = block[: len(data) - place]
    elif way == "swap":
        other = rng.choice([file for file in files if file.parent != path.parent] or files)
    elif way == "copy":
        other = rng.choice([file for file in files if file.name == path.name])
    elif way == "empty":
        data.clear()
    if other != path:
        theirs = other.read_bytes()
        if way == "swap":
            other.write_bytes(data)
        data[:] = theirs
    path.write_bytes(data)
    if way == "delete":
        path.unlink()
    return f"{path.relative_to(folder)}: {way} at {place} with {'/'.join(other.parts[-2:])}"
