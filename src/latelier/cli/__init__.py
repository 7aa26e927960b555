"""The command line: ``latelier index``, ``search``, ``train``, ``evaluate``, ``compare`` and others, one file each."""

from latelier.cli.app import app, main

__all__ = ["app", "main"]
