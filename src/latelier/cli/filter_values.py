"""The values of a filter's parameters, as they are typed on the command line."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["filter_values"]


def filter_values(typed: Iterable[str] | None) -> list[int | float | str]:
    r"""Return the values that texts spell: numbers, texts in double quotes as in JSON, and any other text as it is.

    Parameters
    ----------
    typed
        The texts; None if there are none.

    Returns
    -------
    list
        Values for the ``?`` of a filter, in order.

    Examples
    --------
    >>> filter_values(["2020", '"2020"', "en", '"a \\"b\\""', '"open'])
    [2020, '2020', 'en', 'a "b"', '"open']
    """
    return [_value(text) for text in typed or ()]


def _value(text: str) -> int | float | str:
    from latelier.errors import InvalidArgumentError
    from latelier.utils.files import number_or_text, parse_json

    if not text.startswith('"'):
        return number_or_text(text)
    try:
        value = parse_json(text)
    except InvalidArgumentError:
        return text
    return value if isinstance(value, str) else text
