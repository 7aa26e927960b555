"""The catalog of an index, in SQLite: what is stored beside the vectors, and which segments hold those."""
