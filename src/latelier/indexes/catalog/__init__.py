"""The catalog of an index: an SQLite database of its documents, segments and settings; segments hold the vectors.

`schema` creates and checks the tables, and `upgrade` converts older formats. `rows` reads and writes rows with
checksums; `settings`, `segment_rows`, `document_rows` and `metadata` handle the tables, `values` checks users' values
before they are stored, and `integrity` verifies all rows. `folder` checks the folder of an index, `connection` opens
connections, `authorizer` restricts them, `pool` shares them among threads, and `forks` handles forks of the process.
`filters` selects documents.
"""
