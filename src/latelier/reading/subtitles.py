"""Subtitles, SubRip and WebVTT: what is said, with the time at which it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from latelier.reading.content import Content, counted, decoded
from latelier.reading.records import Part

_TIMES = re.compile(r"[ \t]*((?:\d+:)?\d\d?:\d\d)(?:[.,]\d+)?[ \t]*-->")
_HEADS = ("WEBVTT", "STYLE", "REGION", "NOTE", "X-TIMESTAMP")
_VOICE = re.compile(r"<v(?:\.[^ <>]*)?[ \t]+([^<>]+)>")
_TAGS = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")


def read_subtitles(data: bytes, encoding: str | None = None) -> Iterator[Content]:
    """Yield the text of subtitles, each on lines of its own, as a part with its time."""
    text = ""
    parts = [Part(0)]
    remarks = 0
    for block in re.split(r"\n[ \t]*\n", decoded(data, encoding).replace("\r\n", "\n")):
        lines = block.strip("\n").split("\n")
        at = next((number for number, line in enumerate(lines) if _TIMES.match(line)), None)
        if at is None and lines[0].startswith(_HEADS):
            remarks += lines[0].startswith("NOTE")
            continue
        first = 0 if at is None else at + 1
        said = [_TAGS.sub("", _VOICE.sub(r"\1: ", line)).strip() for line in lines[first:]]
        if any(said):
            text += "\n\n" if text else ""
            if at is not None:
                parts.append(Part(len(text), time=_time(lines[at])))
            text += "\n".join(filter(None, said))
    yield Content(text, parts=tuple(parts), unread=counted(["remark"] * remarks))


def _time(line: str) -> str:
    """Return the time at which a line of times begins, with its hours."""
    found = _TIMES.match(line)
    time = found[1] if found else ""
    return ":".join(part.zfill(2) for part in time.split(":")) if time.count(":") == 2 else f"00:{time.zfill(5)}"
