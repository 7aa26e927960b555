"""What is wrong with a body, parameters or the arguments of a tool, in words: what was received and is accepted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from latelier.utils.checks import cut, did_you_mean, short

_MOST_PROBLEMS = 5
_LONGEST_TEXT = 100
# Those that are looked at: each of a place's alternatives is one.
MOST_ERRORS = 100
# Names by which pydantic tells alternatives apart.
_TYPES = frozenset(("str", "int", "float", "bool", "DocumentText"))
# What is accepted, by pydantic's name of the problem; in braces the limits that come with it.
_ACCEPTED = {
    "string_type": "a text",
    "string_too_short": "a text of at least {min_length:,} characters",
    "string_too_long": "a text of at most {max_length:,} characters",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length:,} items",
}


def told(errors: Sequence[Any]) -> str:
    """Return the first problems that pydantic found, in one line."""
    # Where several types are accepted, pydantic has a problem for each, with the name of the type in the place. A place
    # of which a part has a problem is of one of its types; that it is not of the others does not matter.
    found: dict[str, list[Any]] = {}
    for problem in errors[:MOST_ERRORS]:
        parts = [str(part) for part in problem["loc"] if isinstance(part, int) or part.isidentifier()]
        found.setdefault(".".join(part for part in parts if part not in _TYPES), []).append(problem)
    lines = [
        f"{place}: {_alternatives(problems)}" if place else _alternatives(problems)
        for place, problems in found.items()
        if not (all(map(_is_of_type, problems)) and any(other.startswith(f"{place}.") for other in found))
    ]
    if len(lines) > _MOST_PROBLEMS:
        lines = [*lines[:_MOST_PROBLEMS], f"and {len(lines) - _MOST_PROBLEMS} more"]
    joined = "; ".join(lines)
    if joined.endswith((".", "?")):
        return joined
    return f"{joined}."


def _alternatives(problems: Sequence[Any]) -> str:
    """Return what is wrong with a part: if it is of one of its types, its problems with others do not matter."""
    if not all(_is_of_type(problem) or problem["type"] == "literal_error" for problem in problems):
        problems = [problem for problem in problems if not _is_of_type(problem)]
    own = [str(problem["ctx"]["error"]) for problem in problems if problem["type"] == "value_error"]
    if own:
        return " or ".join(dict.fromkeys(own))
    first = problems[0]
    if first["type"] == "missing":
        return "it is missing"
    accepted = [_accepted(problem) for problem in problems]
    choices = [choice for each in accepted for choice in re.findall(r"'([^']*)'", each)]
    meant = did_you_mean(first["input"], choices)
    return f"received {_received(first)}; expected {' or '.join(dict.fromkeys(accepted))}.{meant}".removesuffix(".")


def _accepted(problem: Any) -> str:
    """Return what is accepted; of a kind of problem that no field here has, the name of the kind."""
    text = _ACCEPTED.get(problem["type"], problem["type"].replace("_", " "))
    return text.format_map(problem.get("ctx") or {})


def _received(problem: Any) -> str:
    """Return what was received, short; of a list its length, as what is in it may be long."""
    given = problem["input"]
    if isinstance(given, str):
        return short(cut(given, _LONGEST_TEXT))
    if given is None or isinstance(given, bool):
        return {None: "null", True: "true", False: "false"}[given]
    if isinstance(given, (list, tuple)):
        return f"a list of {len(given):,}"
    if isinstance(given, dict):
        return "an object"
    return short(given)


def _is_of_type(problem: Any) -> bool:
    return bool(problem["type"].endswith("_type"))
