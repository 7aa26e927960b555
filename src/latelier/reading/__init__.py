"""Reading: what folders, files, streams, tables and Python values hold, as documents and as rows."""
