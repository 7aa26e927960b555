"""The functions that filters may call: those of SQLite that compute one value from other values."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FUNCTIONS", "MOST_REPLACEMENT", "Function"]

# Characters that replace() may put in the place of one.
MOST_REPLACEMENT = 16
_MOST_ARGUMENTS = 100


class Function(NamedTuple):
    """How a function may be called, and how long its value may become.

    Attributes
    ----------
    least, most
        Fewest and most arguments.
    growth
        Bound of its value's length, in lengths of all its arguments together; 0 if it is no longer than one of them.
    depends_on_time
        Whether the value may depend on the time.
    """

    least: int
    most: int = _MOST_ARGUMENTS
    growth: int = 0
    depends_on_time: bool = False


_BY_CALL = {
    Function(1, 1): "abs json length lower sign typeof unicode upper",
    Function(1, 2): "json_array_length json_type json_valid ltrim round rtrim trim",
    Function(2, 2): "glob ifnull instr nullif",
    Function(2, 3): "like substr substring",
    Function(3, 3): "iif",
    Function(2): "coalesce json_extract max min",
    Function(0): "char",
    Function(1, 1, growth=2): "hex quote",  # two hexadecimal digits per byte; two quotes per quote
    Function(0, growth=6): "json_array json_object",  # a control character becomes \u0000
    Function(3, 3, growth=MOST_REPLACEMENT): "replace",
    Function(0, depends_on_time=True): "date datetime julianday time unixepoch",
    Function(1, growth=16, depends_on_time=True): "strftime",  # %J has as many digits
    Function(2, 2, depends_on_time=True): "timediff",
}
FUNCTIONS = {name: function for function, names in _BY_CALL.items() for name in names.split()}
