"""The storage of an index: a catalog in SQLite, and immutable files of arrays, on disk or in memory."""
