"""Encoding on a GPU: attention without padding (`attention`, `unpadded`), and copies that overlap work (`copying`)."""
