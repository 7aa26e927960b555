"""`for_clients`: messages of the library with the advice that clients of a server can follow."""

from __future__ import annotations

__all__ = ["for_clients"]

# Advice of the library's messages that is for Python, and what it is for clients; they name the update differently.
_ADVICE = {
    "ids() lists the ids of the index (1 is not '1')": "search returns the ids of what it finds (1 is not '1')",
    "update(...), or --update on the command line, replaces documents; skip_existing=True, or --resume, keeps the "
    "stored ones": "{update} replaces documents; leave out those that are to stay as they are stored",
    "update() replaces documents": "{update} replaces documents",
    "Add the documents again with skip_existing=True, or --resume, which skips those that are stored and needs an id "
    "for each": "Leave out those that are to stay as they are stored",
}


def for_clients(message: str, *, update: str) -> str:
    """Return a message of the library with the advice that clients of a server can follow.

    Parameters
    ----------
    message
        The message.
    update
        What replaces documents.

    Examples
    --------
    >>> message = "no such id; ids() lists the ids of the index (1 is not '1')."
    >>> for_clients(message, update="PUT")
    "no such id; search returns the ids of what it finds (1 is not '1')."
    """
    for advice, here in _ADVICE.items():
        message = message.replace(advice, here.format(update=update))
    return message
