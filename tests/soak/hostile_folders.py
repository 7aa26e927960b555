"""Index folders that are not made of plain files: links, pipes, folders; and models that bring code."""

import json
import os
import random
from pathlib import Path

_EVIL = "import pathlib\npathlib.Path({!r}).write_text('code of the index ran')\nclass Evil: pass\n"


def links(rng: random.Random, folder: Path, victim: Path) -> str:
    """Put a link to somebody else's file or folder in the place of one of ours."""
    ours = rng.choice([*_files(folder), *_side_files(folder)])
    theirs = rng.choice([path for path in sorted(victim.rglob("*")) if path.is_file()])
    if rng.random() < 0.4:
        ours, theirs = rng.choice([folder / "segments", *sorted((folder / "segments").iterdir())]), victim
    if ours.exists():
        ours.rename(victim.parent / "aside")
    if rng.random() < 0.3:  # a folder that looks as it should, but stands elsewhere
        theirs = victim.parent / "aside"
        if not theirs.exists():
            theirs = victim / "empty"
    ours.symlink_to(theirs)
    return f"{ours.relative_to(folder)} -> {theirs.relative_to(victim.parent)}"


def specials(rng: random.Random, folder: Path, victim: Path) -> str:
    """Put a pipe or a folder in the place of a file, or a file in the place of a folder."""
    ours = rng.choice([*_files(folder), *_side_files(folder), folder / "segments"])
    if ours.exists():
        ours.rename(victim.parent / "aside")
    way = rng.choice(["pipe", "folder", "file", "device"])
    if way == "pipe":
        os.mkfifo(ours)
    elif way == "folder":
        ours.mkdir()
    elif way == "file":
        ours.write_bytes(rng.randbytes(100))
    else:
        ours.symlink_to("/dev/zero")
    return f"{ours.relative_to(folder)} is a {way}"


def evil_model(folder: Path, victim: Path) -> None:
    """Put a model into the index whose files name Python code of their own."""
    model = folder / "model"
    model.mkdir()
    code = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}
    files = {
        "modules.json": [{"idx": 0, "name": "0", "path": "", "type": "evil.Evil"}],
        "config_sentence_transformers.json": {
            "model_type": "MultiVectorEncoder",
            "__version__": {"sentence_transformers": "5.0.0"},
        },
        "config.json": {"model_type": "bert", "auto_map": code, "architectures": ["Evil"]},
        "tokenizer_config.json": {"auto_map": code, "tokenizer_class": "Evil"},
    }
    for name, content in files.items():
        (model / name).write_text(json.dumps(content))
    for name in ("evil.py", "__init__.py"):
        (model / name).write_text(_EVIL.format(str(victim / "PWNED")))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _side_files(folder: Path) -> list[Path]:
    return [folder / f"catalog.sqlite-{name}" for name in ("wal", "shm", "journal")]


ATTACKS = (links, specials)
