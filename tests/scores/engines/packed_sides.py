"""Queries and documents of many lengths, and what two loops say of them."""

from latelier.embeddings import TokenEmbeddings
from naive import naive_matrix, ragged

LENGTHS = [0, 1, 2, 7, 8, 9, 16, 33, 0, 5]


def sides(dim, query_lengths=(5, 0, 1, 17, 32), seed=0, shift=0.0):
    queries = TokenEmbeddings.from_list(ragged(query_lengths, dim, seed, shift=shift))
    return queries, TokenEmbeddings.from_list(ragged(LENGTHS, dim, seed + 1, shift=-shift))


def expected_scores(queries, documents):
    return naive_matrix(list(queries), list(documents))
