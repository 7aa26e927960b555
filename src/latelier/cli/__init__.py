"""The command line: ``latelier index``, ``search``, ``info`` and ``demo``."""

from latelier.cli.app import app, main

__all__ = ["app", "main"]
