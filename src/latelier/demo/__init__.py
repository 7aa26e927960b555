"""The docstrings of Python's standard library as a collection of documents, and a session that searches them."""

from latelier.demo.session import standard_library_documents

__all__ = ["standard_library_documents"]
