"""MaxSim as two loops in double precision: what every engine is compared with."""

import math

import numpy as np
import torch


def naive_maxsim(query, document) -> float:
    """Score one query (q, dim) against one document (n, dim), both without padding."""
    query, document = _double(query), _double(document)
    if len(document) == 0:
        return -math.inf
    total = 0.0
    for q in query:
        total += max(float(q @ d) for d in document)
    return total


def naive_matrix(queries, documents):
    """All queries against all documents, float64 (q, d)."""
    return np.array([[naive_maxsim(q, d) for d in documents] for q in queries]).reshape(len(queries), len(documents))


def naive_tensor_maxsim(query, document):
    if len(document) == 0:
        return query.sum() * 0 - math.inf
    return sum((torch.stack([q @ d for d in document]).max() for q in query), query.sum() * 0)


def _double(matrix):
    if isinstance(matrix, torch.Tensor):
        return matrix.detach().double().cpu().numpy()
    return np.asarray(matrix, dtype="float64")


def ragged(lengths, dim=8, seed=0, dtype=torch.float32, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, dim, generator=generator) + shift).to(dtype) for n in lengths]
