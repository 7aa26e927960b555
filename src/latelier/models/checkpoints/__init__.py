"""Checkpoints: where a model is, in which layout it was saved, and what is missing to make it a `ColBERT`.

sentence-transformers reads the files; `heads` says which trained layers it found, and `pylate` writes PyLate's layout.
"""
