"""The catalog of an index, in SQLite: everything stored beside the vectors, and which segments hold the vectors.

`schema` has the tables and the version of their format, `upgrade` what older indexes lack. `rows` reads and writes rows
with checksums; `settings`, `segment_rows`, `document_rows` and `metadata` are the tables, `integrity` checks them all,
and `values` checks what users want stored in them. `folder` is the folder of an index, `connection` one connection to
its catalog and `authorizer` what it may do, `pool` decides who reads and writes when, `forks` what happens at a fork.
`filters` selects documents.
"""
