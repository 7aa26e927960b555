"""Filters: SQL expressions over metadata, read by a grammar of our own and evaluated by the catalog."""
