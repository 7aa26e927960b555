"""Notebooks of Jupyter, of version 3 too: their texts, code, and the outputs of it that are text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.reading.content import Content, counted, decoded
from latelier.utils.files import parse_json

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def read_notebook(data: bytes) -> Iterator[Content]:
    """Yield the text of a notebook."""
    notebook = parse_json(decoded(data))
    if not isinstance(notebook, dict) or not ("cells" in notebook or "worksheets" in notebook):
        raise InvalidArgumentError("it is no notebook: it has neither cells nor worksheets.")
    sheets = [notebook, *(notebook.get("worksheets") or [])]
    texts: list[str] = []
    pictures = 0
    for cell in (cell for sheet in sheets for cell in sheet.get("cells") or []):
        text = _joined(cell.get("source") or cell.get("input"))
        kind = cell.get("cell_type")
        if kind == "code":
            texts.append(_fenced(text))
        elif kind == "heading":
            texts.append(f"{'#' * cell.get('level', 1)} {text}")
        else:
            texts.append(text)
        pictures += len(cell.get("attachments") or {})
        for output in cell.get("outputs") or []:
            texts.append(_fenced(_output(output)))
            pictures += any(kind.startswith("image/") or kind in ("png", "jpeg") for kind in _forms(output))
    text = "\n\n".join(filter(None, texts))
    yield Content(text, unread=counted(["picture"] * pictures))


def _joined(lines: Any) -> str:
    return lines if isinstance(lines, str) else "".join(lines or [])


def _fenced(text: str) -> str:
    longest = max(map(len, re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text}\n{fence}" if text.strip() else ""


def _forms(output: Any) -> dict[str, Any]:
    """Return an output by its kinds; in version 3, they stand beside the other keys."""
    found: dict[str, Any] = output.get("data") or output
    return found


def _output(output: Any) -> str:
    """Return the text of an output: what was printed, a value, or an error."""
    if output.get("output_type") in ("error", "pyerr"):
        return f"{output.get('ename', '')}: {output.get('evalue', '')}"
    forms = _forms(output)
    form = next((forms[kind] for kind in ("text", "text/plain", "text/markdown", "text/latex") if kind in forms), "")
    return _COLOURS.sub("", _joined(form)).strip("\n")
