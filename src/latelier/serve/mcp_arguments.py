"""`strict_tool`: a tool that refuses arguments it does not know, rather than ignore them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase
from mcp_types import ToolAnnotations
from pydantic import BaseModel, ConfigDict, model_validator

__all__ = ["StrictModel", "strict_tool"]


class StrictModel(BaseModel):
    """Fields of which others are refused, with the names of those that exist.

    Examples
    --------
    >>> class Point(StrictModel):
    ...     x: int
    >>> Point(x=1, z=2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    pydantic_core...ValidationError: 1 validation error for Point
      Value error, received 'z'; expected no other names than 'x' [type=value_error, ...
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _has_known_names(cls, given: Any) -> Any:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        unknown = [name for name in given if name not in known] if isinstance(given, dict) else []
        if unknown:
            accepted = "no other names than " + ", ".join(map(repr, known)) if known else "no arguments"
            raise ValueError(f"received {', '.join(map(repr, unknown))}; expected {accepted}")
        return given


def strict_tool(function: Callable[..., Any], annotations: ToolAnnotations) -> Tool:
    """Return the tool that calls a function, with a schema that allows no other arguments than its own.

    Parameters
    ----------
    function
        Its name, signature and docstring are what agents see.
    annotations
        Hints of what it does.
    """
    tool = Tool.from_function(function, annotations=annotations)
    lenient = tool.fn_metadata.arg_model
    strict: type[ArgModelBase] = type(lenient.__name__, (StrictModel, lenient), {"__module__": __name__})
    tool.fn_metadata.arg_model = strict
    tool.parameters = strict.model_json_schema(by_alias=True)
    return tool
