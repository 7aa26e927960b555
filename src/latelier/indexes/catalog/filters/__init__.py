"""Filters: an SQL expression over the metadata of documents, such as ``year >= 2020 AND lang = ?``.

The columns are the keys of the metadata, ``id``, ``text`` and ``metadata``, the exact JSON. A document without the key
has NULL there, so ``year >= 2020`` leaves it out and ``year IS NULL`` finds it. Booleans are 0 and 1, lists and dicts
are JSON text: ``EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)``.

As in SQL, the case of ASCII letters in a key does not matter: ``lang`` and ``Lang`` are one column, and where a
document has both, the first counts. The keys ``id``, ``text``, ``metadata``, ``true`` and ``false`` have no column, and
there are at most 500. What a column does not give is read as ``metadata ->> '$.Lang'``.

An expression may come from a stranger. It is parsed by a grammar that is a subset of SQL's and bounds how long its
values become (`grammar`); it runs for a limited time (`bounds`); and SQLite itself denies it everything but reading
documents (`latelier.indexes.catalog.authorizer`).
"""
