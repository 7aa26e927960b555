"""A collection that every Python has, the docstrings of its standard library, and a session that searches it."""

from latelier.demo.corpus import standard_library_documents

__all__ = ["standard_library_documents"]
