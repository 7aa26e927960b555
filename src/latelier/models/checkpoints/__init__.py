"""Checkpoints: where a model is, in which layout it was saved, and what is missing to make it a `ColBERT`.

Each layout has a file of its own; sentence-transformers reads the files, and these modules say what it found.
"""
