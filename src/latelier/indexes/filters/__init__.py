"""Filters: an SQL expression over the metadata of documents, such as ``year >= 2020 AND lang = ?``.

The columns are ``id``, ``text``, ``metadata`` (the exact JSON) and the keys of the metadata. A document without a key
has NULL in its column, so ``year >= 2020`` leaves the document out and ``year IS NULL`` finds it. Booleans are 0 and 1.
Lists and dicts are JSON text: ``EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)``.

As in SQL, the case of ASCII letters in a key does not matter: ``lang`` and ``Lang`` are one column. If a document has
both, the column holds the first. The keys ``id``, ``text``, ``metadata``, ``true`` and ``false`` get no column, and at
most 500 keys get one. Any other value can be read from the JSON: ``metadata ->> '$.Lang'``.

Expressions may come from untrusted users. The grammar accepts a subset of SQL and limits the length of computed values
(`grammar`), the evaluation has a time limit (`bounds`), and SQLite denies everything except reading documents
(`latelier.indexes.store.connections`).
"""
