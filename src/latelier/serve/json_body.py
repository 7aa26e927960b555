"""`json_body`: a response's body, also for metadata that is nested more deeply than pydantic's encoder goes."""

from __future__ import annotations

import json

from pydantic_core import PydanticSerializationError, to_json

__all__ = ["json_body"]


def json_body(value: object) -> bytes:
    """Return a value as JSON; numbers that are not finite, which JSON lacks, become null.

    Examples
    --------
    >>> json_body({"id": "ä", "score": float("inf")}).decode()
    '{"id":"ä","score":null}'
    """
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:
        # It goes to 255 levels. New metadata has at most 100, what older versions have stored may have more.
        finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
        return json.dumps(finite, ensure_ascii=False, separators=(",", ":")).encode()
