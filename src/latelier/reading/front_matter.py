"""What stands before a text about it: YAML between dashes, TOML between plus signs, JSON, and the keywords of Org."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from latelier.utils.checks import cut, short

_BLOCK = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(.*?)^(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_JSON = re.compile(r"\{\s*(?:\"|\})")
_LONGEST = 100_000  # characters
_MOST_VALUES = 10_000
_DEEPEST = 20
# Their texts are put before the first passage, since people search for them.
_SEARCHED = frozenset(
    {
        *("alias", "aliases", "tag", "tags", "keyword", "keywords", "category", "categories"),
        *("subtitle", "description", "summary", "abstract"),
    }
)


class FrontMatter(NamedTuple):
    """The values before a text, where the text begins, and what is wrong with what looks like front matter."""

    values: dict[str, Any]
    begin: int = 0
    fault: str = ""

    @property
    def lead(self) -> str:
        """The texts in it that are searched."""
        found = [_texts(value) for name, value in self.values.items() if name.lower() in _SEARCHED]
        return "\n".join(filter(None, found))


def front_matter(text: str, suffix: str) -> FrontMatter:
    """Return what stands before a text in light markup; what is no front matter stays a part of the text."""
    if suffix == ".org":
        return _org_keywords(text)
    found = _BLOCK.match(text[: 2 * _LONGEST])
    if found and len(found[2]) <= _LONGEST:
        if found[1] == "+++":
            return _parsed("TOML", _toml, found[2], found.end())
        return _parsed("YAML", _yaml, found[2], found.end())
    if _JSON.match(text):
        return _json_object(text)
    return FrontMatter({})


def _json_object(text: str) -> FrontMatter:
    """Return the object that a text begins with, if a line and other text come after it."""
    try:
        value, end = json.JSONDecoder().raw_decode(text[:_LONGEST])
    except (ValueError, RecursionError):
        return FrontMatter({})
    if text[end : end + 1] not in ("\n", "\r") or not text[end:].strip():
        return FrontMatter({})
    return _parsed("JSON", lambda source: (value, ""), "", end)


def _parsed(kind: str, parse: Callable[[str], tuple[Any, str]], source: str, end: int) -> FrontMatter:
    try:
        given, fault = parse(source)
        if not isinstance(given, dict):  # a text between two rules
            return FrontMatter({})
        values = _as_json(given, [_MOST_VALUES], _DEEPEST)
    except (ValueError, RecursionError) as error:
        reason = " ".join(cut(str(error) or type(error).__name__, 100).split())
        return FrontMatter({}, 0, f"front matter as {kind} ({reason})")
    return FrontMatter({name: value for name, value in values.items() if value not in (None, "", [], {})}, end, fault)


def _as_json(value: Any, left: list[int], depth: int) -> Any:
    """Return a value in JSON's types; aliases of YAML, which may stand for any number of values, are bounded."""
    left[0] -= 1
    if left[0] < 0 or depth < 0:
        raise ValueError(f"it has more than {_MOST_VALUES:,} values, or is nested more than {_DEEPEST} deep")
    if isinstance(value, dict):
        return {str(name): _as_json(each, left, depth - 1) for name, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_as_json(each, left, depth - 1) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value)


def _texts(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(filter(None, map(_texts, value)))
    return value.strip() if isinstance(value, str) else ""


_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_YAML_FLOAT = r"""
[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)\.[0-9]*|(?:0|[1-9][0-9]*)(?=[eE]))(?:[eE][-+]?[0-9]+)?\Z
|[-+]?\.(?:inf|Inf|INF|nan|NaN|NAN)\Z
"""


@cache
def _loader() -> Any:
    """Return the safe loader of YAML with the numbers of version 1.2: neither 12:30 nor 007 is one."""
    import yaml

    safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(safe):
        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [(tag, regex) for tag, regex in known if tag not in (_INT, _FLOAT)]
            for first, known in safe.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            for key, _ in getattr(node, "value", ()):  # names are texts: "no" and "on" too
                if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                    key.tag = _TEXT
            return super().construct_mapping(node, deep)

    def time_or_text(loader: Any, node: Any) -> Any:
        try:
            return loader.construct_yaml_timestamp(node)
        except ValueError:  # the 30th of February
            return node.value

    def of_another_tag(loader: Any, tag: str, node: Any) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return node.value
        if isinstance(node, yaml.SequenceNode):
            return loader.construct_sequence(node, deep=True)
        return loader.construct_mapping(node, deep=True)

    Loader.add_implicit_resolver(_INT, re.compile(r"[-+]?(?:0|[1-9][0-9_]*)\Z"), list("-+0123456789"))
    Loader.add_implicit_resolver(_FLOAT, re.compile(_YAML_FLOAT, re.VERBOSE), list("-+.0123456789"))
    Loader.add_constructor("tag:yaml.org,2002:timestamp", time_or_text)
    Loader.add_multi_constructor("!", of_another_tag)
    return Loader


_ENTRY = re.compile(r"^(?=[^\s#:-][^\n:]*:(?:[ \t\n]|\Z))", re.MULTILINE)


def _yaml(source: str) -> tuple[Any, str]:
    """Return the value of a YAML text; if it is not valid as a whole, its entries one by one, and which are texts."""
    try:
        return _valid_yaml(source), ""
    except ValueError as error:
        values: dict[str, Any] = {}
        faulty = []
        for entry in _ENTRY.split(source):
            name, _, rest = entry.partition(":")
            try:
                values |= _valid_yaml(entry) or {}
            except (ValueError, TypeError):
                faulty.append(name)
                values[name] = " ".join(rest.split())
        if len(faulty) == len(values):
            raise
        return values, f"{' and '.join(map(short, faulty))} of the front matter as YAML ({error})"


def _valid_yaml(source: str) -> Any:
    import yaml

    try:
        return yaml.load(source, Loader=_loader())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f"line {mark.line + 2}: "
        raise ValueError(f"{place}{getattr(error, 'problem', None) or error}") from error


def _toml(source: str) -> tuple[Any, str]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib

    return tomllib.loads(source), ""


_ORG_KEYWORD = re.compile(r"[ \t]*(?:#\+(\w+):[ \t]*([^\r\n]*)|#(?:[ \t][^\r\n]*)?|)(?:\r?\n|\Z)")
_ORG_DRAWER = re.compile(
    r"\s*:PROPERTIES:[ \t]*\r?\n(?:[ \t]*:[^\r\n]*\r?\n)*?[ \t]*:END:[ \t]*(?:\r?\n|\Z)", re.IGNORECASE
)
_ORG_LISTS = {"filetags": "tags", "keywords": "keywords"}
_ORG_TEXTS = frozenset({"title", "subtitle", "author", "date", "description", "email", "language", "category"})


def _org_keywords(text: str) -> FrontMatter:
    """Return the keywords before a text of Org, and the aliases in a drawer of properties before them."""
    values: dict[str, Any] = {}
    end = 0
    drawer = _ORG_DRAWER.match(text)
    if drawer:
        end = drawer.end()
        aliases = re.search(r"^[ \t]*:ROAM_ALIASES:(.*)", drawer[0], re.MULTILINE | re.IGNORECASE)
        quoted = re.findall(r'"([^"]*)"|(\S+)', aliases[1]) if aliases else []
        values["aliases"] = [either or other for either, other in quoted]
    for name, value, after in _org_lines(text, end):
        if name in _ORG_LISTS:
            values[_ORG_LISTS[name]] = [tag for tag in re.split(r"[:,\s]+", value) if tag]
        elif name in _ORG_TEXTS:
            values[name] = f"{values[name]} {value}" if name in values else value
        end = after
    return FrontMatter({name: value for name, value in values.items() if value}, end if values else 0)


def _org_lines(text: str, at: int) -> Iterator[tuple[str, str, int]]:
    """Yield the keywords from a position on, in lower case, with their values, and where the line after each begins."""
    while at < len(text):
        found = _ORG_KEYWORD.match(text, at)
        if not found or (found[1] and found[1].lower().startswith("begin")):
            return
        at = found.end()
        if found[1]:
            yield found[1].lower(), found[2].strip(), at
