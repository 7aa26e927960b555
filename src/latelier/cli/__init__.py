"""The command line: ``latelier index``, ``search``, ``train``, ``info``, ``warmup`` and ``demo``."""

from latelier.cli.app import app, main

__all__ = ["app", "main"]
