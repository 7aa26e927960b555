"""`search_response`: the results of a search as a response, written by pydantic's encoder without its models.

The models of `SearchResponse` describe this form in the OpenAPI document. Making one for each result, checking it and
turning it into a dict again takes longer than writing the JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fastapi import Response

from latelier.errors import EmbeddingsError
from latelier.retrieve import Result
from latelier.serve.json_body import json_body
from latelier.utils.checks import short

__all__ = ["search_response"]


def search_response(
    results: Sequence[Sequence[Result]], milliseconds: Mapping[str, float], include: Sequence[str]
) -> Response:
    """Return the response to a search.

    Parameters
    ----------
    results
        The results of each query.
    milliseconds
        Time of each stage, also sent as the header ``Server-Timing``, which browsers show.
    include
        Which of ``"text"`` and ``"metadata"`` each result holds; the others are null.

    Raises
    ------
    EmbeddingsError
        If a score is not a finite number, which JSON cannot hold.

    Examples
    --------
    >>> found = [[Result("a", 1.5, "Bananas.", {"year": 2024})]]
    >>> response = search_response(found, {"search": 2.25}, ["text"])
    >>> response.body[:60]
    b'{"results":[[{"id":"a","score":1.5,"text":"Bananas.","metada'
    >>> response.headers["server-timing"]
    'search;dur=2.25'
    """
    _check_scores(results)
    has_text, has_metadata = "text" in include, "metadata" in include
    rows = [
        [
            {
                "id": result.id,
                "score": result.score,
                "text": result.text if has_text else None,
                "metadata": result.metadata if has_metadata else None,
                "start": result.start,
                "end": result.end,
            }
            for result in found
        ]
        for found in results
    ]
    body = json_body({"results": rows, "milliseconds": milliseconds})
    timing = ", ".join(f"{stage};dur={time}" for stage, time in milliseconds.items())
    return Response(body, media_type="application/json", headers={"server-timing": timing})


def _check_scores(results: Sequence[Sequence[Result]]) -> None:
    for position, found in enumerate(results):
        for result in found:
            if not math.isfinite(result.score):
                raise EmbeddingsError(
                    f"query {position} and document {short(result.id)} have the score {result.score}, as their vectors "
                    "are too long for float32; scale them, for instance to length 1."
                )
