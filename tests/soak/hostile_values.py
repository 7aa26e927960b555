"""Values that no index of ours would hold, for every column of its catalog."""

import json
import random
from pathlib import Path
from typing import Any

_PLAIN: list[Any] = [
    *(0, 1, -1, 2**31, 2**40, 2**63 - 1, -(2**63), 1e308, -0.5, float("inf"), None, b"\xff\xfe", b""),
    *("", "x", "0", "null", "[]", "{}", '{"a": 1}', '"x"', "NaN", "1e999", "-1", "true", "9" * 5000, "[" * 100_000),
    *("'; DROP TABLE document; --", "\0", "a\0b", "\x1b[2J", "é" * 300, "x" * 5000, "(SELECT 1)", "1 FROM document --"),
]
# What stands for numbers in JSON, where others read what we do not write.
_JSON: list[Any] = [
    *(0, 1, -1, 2**40, 2**63, 10**400, 0.5, 1e308, None, True, "", "x", "8", [], {}, [0], [-1, 8], [2**40, 2**40]),
    *([[1]], {"a": 1}, ["x"], "|O", "<f4", "<U9", "<i8", "|V8", ">f2", "float32", "<f4,<f4", "x" * 5000, float("nan")),
]


def paths(victim: Path) -> list[str]:
    """Return names that lead out of an index, or nowhere.

    None leads out of the folder of the case (which `victim` is in): what follows them may delete what it finds.
    """
    return [
        *(
            str(victim),
            f"{victim}/photos",
            f"../../{victim.name}",
            f"../../{victim.name}/photos",
            "..",
            ".",
            "../..",
            "",
        ),
        *("photos", "photos/a.jpg", "../catalog.sqlite", "catalog.sqlite", "a" * 300, "a" * 5000, "\0", "a\0b", "~"),
        *("-rf", "CON", "C:\\", "..\\..\\victim", "x/../../../victim", "./", "é", "a b", "%2e%2e", "\u202e"),
        *(f"{victim}/photos/a.jpg", f"../../../{victim.name}/notes.npy", f"{victim}/notes.npy", f"{victim}/pipe"),
    ]


def value(rng: random.Random, victim: Path) -> Any:
    """Return something to put into any column."""
    return rng.choice(paths(victim)) if rng.random() < 0.2 else rng.choice(_PLAIN)


def mutated_json(rng: random.Random, text: str, victim: Path) -> str:
    """Return JSON in which one value or key is another one."""
    tree = [json.loads(text)]
    place: Any = tree
    while True:
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not place[key] or not isinstance(place[key], (dict, list)) or rng.random() < 0.25:
            break
        place = place[key]
    way = rng.randrange(6)
    if way == 0 and isinstance(place, dict):
        place[rng.choice(paths(victim))] = place.pop(key)
    elif way == 1 and place is not tree:
        del place[key]
    else:
        place[key] = rng.choice(paths(victim)) if rng.random() < 0.2 else rng.choice(_JSON)
    return json.dumps(tree[0])
