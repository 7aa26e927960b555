"""Makes hostile inputs for ``latelier index FILE``, and says what the reading of one came to."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import random
import time
from pathlib import Path
from typing import get_args

from latelier.errors import LatelierError
from latelier.indexes.store.rows import encode_metadata
from latelier.reading.folders import DocumentFormat, read_document_file
from latelier.utils.values import as_id, check_text

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt", ".log", "")
# Of the processor's time, which a case may take; reading one takes a thousandth of it.
SECONDS = 10.0
# Enough of a file: damaged gzip now and then becomes a good one of millions of short lines.
DOCUMENTS = 20_000

RECORDS = [
    {"id": "a", "text": "Bananas are healthy.", "year": 2019},
    {"_id": 7, "title": "Mond", "text": "Der Mond ist weit weg: 月 \U0001f311.", "metadata": {"tags": ["x", None]}},
    {"text": 'quoted "text", with commas\nand lines', "score": -1.5e3, "open": True},
]
JSON_LINES = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS) + '["id", "a pair"]\n"text"\n'
SEEDS = {
    ".jsonl": JSON_LINES,
    ".csv": 'id,title,text,year\na,,"Bananas, or\nfruit",2019\n"b ""c""",Moon,far away,007\n',
    ".tsv": "id\ttext\tyear\na\tBananas\t2019\nb\tThe moon\t\n",
    ".txt": "Bananas are healthy.\r\n\n  The moon is far away. \n{not json}\n",
}
VALUES = [
    "[" * 100_000,
    '{"a":' * 5_000 + "1" + "}" * 5_000,
    '{"text": "x", "deep": ' + "[" * 900 + "]" * 900 + "}",
    '{"text": "x", "n": ' + "9" * 5_000 + "}",
    '{"text": "x", "n": ' + "9" * 400 + "}",
    '{"text": "x", "n": 1e999}',
    '{"text": "x", "n": NaN}',
    '{"text": "x", "n": -Infinity}',
    '{"text": "\\ud800"}',
    '{"text": "x", "\\udfff": 1}',
    '{"text": "x", "m": {"a": ["\\ud800"]}}',
    '{"id": "\\ud83d", "text": "x"}',
    '{"id": 1e400, "text": "x"}',
    '{"id": 9223372036854775808, "text": "x"}',
    '{"id": true, "text": "x"}',
    '{"id": null, "text": "x"}',
    '{"id": "a", "_id": "b", "text": "x"}',
    '{"id": "' + "i" * 70_000 + '", "text": "x"}',
    '{"text": null}',
    '{"text": ["x"]}',
    '{"text": "x", "title": 5}',
    '{"text": "x", "metadata": "no dict"}',
    '{"text": "x", "metadata": {"year": 1}, "year": 2}',
    '{"text": "x", "": 1}',
    '{"text": "\\u0000 null \\u001b[2J\\u202e"}',
    '{"\x00": "\x1b]0;title\x07", "text": "x"}',
    *["[]", "[1,2]", "[[1],[2]]", '["id","text","more"]', "null", "1", "-", '"', '""', '"\\ud800"'],
    "id,text\n1," + "x" * 140_000,
    'id,text\n1,"' + "x\n" * 70_000,
    "id,text\n" + "," * 5_000,
    "id,text,text\n1,a,b",
    "text\n" + "9" * 5_000,
    "text,n\nx," + "9" * 5_000,
    "text,n\nx," + "[" * 100_000,
    "id\ttext\n\x00\t\x00",
    "text\r\r\nx\ry\n",
    "\ufeff\ufefftext\nx",
    "\n" * 1_000,
    "\x85\u2028\u2029\x0b\x0c",
    "a" * 300_000,
]


def run_case(random: random.Random, folder: Path) -> str:
    """Read a hostile file as ``latelier index`` does; return ``"accepted"``, ``"refused"`` or what is wrong."""
    seeded = random.random() < 0.5
    suffix = random.choice(list(SEEDS) if seeded else SUFFIXES)
    content = _mutate(random, SEEDS[suffix].encode()) if seeded else _hostile(random)
    kind = random.random()
    if kind < 0.25:
        content = gzip.compress(content, mtime=0)
        content = _mutate(random, content) if random.random() < 0.7 else content
    path = folder / f"case{suffix}{'.gz' * (kind < 0.3)}"  # some are no gzip
    path.write_bytes(content)
    format = random.choice(get_args(DocumentFormat)) if random.random() < 0.2 else "auto"
    limit, start, verdict = csv.field_size_limit(), time.process_time(), "accepted"
    try:
        for document in itertools.islice(read_document_file(str(path), format), DOCUMENTS):
            as_id(0 if document.id is None else document.id)
            check_text(document.text, 0)
            encode_metadata(document.metadata, 0)
            document.text.encode()
    except LatelierError as error:
        verdict = "refused" if len(str(error)) <= 2_000 else f"a message of {len(str(error)):,} characters"
    except Exception as error:  # noqa: BLE001 (which ones there are is what it looks for)
        verdict = f"{type(error).__name__}: {error}"[:500]
    if (seconds := time.process_time() - start) > SECONDS:
        verdict = f"took {seconds:.1f} seconds"
    return verdict if csv.field_size_limit() == limit else "left the limit of the csv module changed"


def _mutate(random: random.Random, content: bytes) -> bytes:
    data = bytearray(content)
    for _ in range(random.choice((0, 1, 1, 1, 2, 5, 30))):
        at = random.randrange(len(data) + 1)
        kind = random.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[at:at] = random.randbytes(random.choice((1, 1, 4, 100)))
        elif kind == 2:
            del data[at : at + random.choice((1, 1, 10))]
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            data[at:at] = bytes(data[:at][-50:]) * random.choice((1, 2, 200))
        else:
            data[at:at] = random.choice(
                (b"\x00", b'"', b"\\u", b"\\ud83d", b"{", b"\xff", b"\n", b"\r", b",", b"\x1b[")
            )
    return bytes(data)


def _hostile(random: random.Random) -> bytes:
    text = "\n".join(random.choice(VALUES) for _ in range(random.choice((1, 1, 2, 4))))
    if random.random() < 0.2:
        return text.encode(random.choice(("utf-16", "utf-32", "utf-8-sig", "utf-7")), "surrogatepass")
    content = text.encode("utf-8", "surrogatepass")
    if random.random() < 0.1:
        return random.randbytes(random.choice((0, 1, 100, 5_000)))
    return _mutate(random, content) if random.random() < 0.5 else content
