"""The storage of an index: immutable segments of arrays, snapshots of them, and the transactions that change them."""
