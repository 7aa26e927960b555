"""Filters: an SQL expression over the metadata of documents, such as ``year >= 2020 AND lang = ?``.

The columns are ``id``, ``text``, ``metadata`` (the exact JSON) and the keys of the metadata. A document without a key
has NULL in its column, so ``year >= 2020`` leaves the document out and ``year IS NULL`` finds it. Booleans are 0 and 1.
Lists and dicts are JSON text: ``EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)``.

As in SQL, the case of ASCII letters in a key does not matter: ``lang`` and ``Lang`` are one column. If a document has
both, the column holds the first. The keys ``id``, ``text``, ``metadata``, ``true`` and ``false`` get no column, and at
most 500 keys get one. Any other value can be read from the JSON: ``metadata ->> '$.Lang'``.

Expressions may come from untrusted users. The parser accepts a part of SQL: comparisons, AND, OR and NOT, IN, BETWEEN,
IS NULL, LIKE and GLOB, arithmetic, ``||``, ``->`` and ``->>``, queries over json_each, CAST, CASE, COLLATE NOCASE, and
the functions abs, coalesce, date, datetime, ifnull, iif, instr, json_extract, json_valid, julianday, length, lower,
max, min, nullif, replace, round, substr, trim, typeof, unixepoch and upper. Literals are written anew and parameters
are bound. The evaluation has a time limit, a value may have up to 16 MiB, and less where one step would take long (on
Python 3.10, SQLite's own 1 GB), and SQLite denies everything except reading documents.
"""
