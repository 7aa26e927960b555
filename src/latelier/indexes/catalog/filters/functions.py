"""The functions that filters may call: those of SQLite that compute a value from values, and nothing else."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FUNCTIONS", "Function"]

_MOST_ARGUMENTS = 100


class Function(NamedTuple):
    """How a function is called.

    Attributes
    ----------
    least, most
        How many arguments it takes.
    growth
        How many times as long as all its arguments together its value may be; 0 if it is never longer than one.
    asks_time
        Whether the value may depend on the time.
    """

    least: int
    most: int = _MOST_ARGUMENTS
    growth: int = 0
    asks_time: bool = False


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
    Function(3, 3, growth=16): "replace",  # by at most so many characters, which the parser sees to
    Function(0, asks_time=True): "date datetime julianday time unixepoch",
    Function(1, growth=16, asks_time=True): "strftime",  # %J has as many digits
    Function(2, 2, asks_time=True): "timediff",
}
FUNCTIONS = {name: function for function, names in _BY_CALL.items() for name in names.split()}
