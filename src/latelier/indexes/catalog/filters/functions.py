"""The functions that filters may call: scalar functions of SQLite, which compute one value from other values."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FUNCTIONS", "MOST_REPLACEMENT", "Function"]

# Maximum length of the third argument of replace(), which may take the place of every single character.
MOST_REPLACEMENT = 16
_MOST_ARGUMENTS = 100


class Function(NamedTuple):
    """The signature of a function, and a bound of the length of its value.

    Attributes
    ----------
    least, most
        Minimum and maximum number of arguments.
    growth
        ``len(value) <= growth * (sum of the lengths of the arguments)``; 0 if no value is longer than the longest
        argument.
    depends_on_time
        Whether the value may depend on the current time.
    """

    least: int
    most: int = _MOST_ARGUMENTS
    growth: int = 0
    depends_on_time: bool = False


_BY_SIGNATURE = {
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
    Function(1, growth=16, depends_on_time=True): "strftime",  # %J alone has 16 digits
    Function(2, 2, depends_on_time=True): "timediff",
}
FUNCTIONS = {name: function for function, names in _BY_SIGNATURE.items() for name in names.split()}
