"""Linear maps to fewer dimensions that need no training: a random rotation, or PCA in closed form."""

from __future__ import annotations

import torch

__all__ = ["SecondMoment", "orthogonal_weight"]


def orthogonal_weight(out_features: int, in_features: int, seed: int = 0) -> torch.Tensor:
    """Return a seeded random matrix with orthonormal rows (columns where it is taller than wide).

    Projecting on random orthonormal directions keeps inner products on average (Johnson-Lindenstrauss).

    Parameters
    ----------
    out_features, in_features
        Shape of the matrix.
    seed
        Seed; the same one gives the same matrix on every machine.

    Returns
    -------
    torch.Tensor
        ``(out_features, in_features)`` float32.

    Examples
    --------
    >>> weight = orthogonal_weight(2, 3)
    >>> torch.allclose(weight @ weight.T, torch.eye(2), atol=1e-6)
    True
    """
    weight = torch.empty(out_features, in_features)
    torch.nn.init.orthogonal_(weight, generator=torch.Generator().manual_seed(seed))
    return weight


class SecondMoment:
    """The second moment of unit vectors, gathered batch by batch, and its principal directions.

    PCA without centring: MaxSim compares by inner products, which the leading eigenvectors of the second moment keep
    best (Eckart-Young); subtracting a mean would need a bias in the projection and would change what a zero means.

    Parameters
    ----------
    dim
        Dimension of the vectors.

    Examples
    --------
    >>> moment = SecondMoment(2)
    >>> moment.add(torch.tensor([[3.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    >>> moment.directions(1).abs()
    tensor([[1., 0.]])
    >>> round(moment.kept(1), 3)
    0.667
    """

    def __init__(self, dim: int) -> None:
        self.count = 0
        self._sum = torch.zeros(dim, dim, dtype=torch.float64)

    def add(self, vectors: torch.Tensor) -> None:
        """Add ``(n, dim)`` vectors; each is normalised first, as it will be for scoring."""
        unit = torch.nn.functional.normalize(vectors.detach().double().cpu(), dim=1)
        self._sum += unit.T @ unit
        self.count += len(unit)

    def directions(self, k: int) -> torch.Tensor:
        """Return the `k` leading eigenvectors as rows ``(k, dim)`` float32, each with a fixed sign."""
        vectors = torch.linalg.eigh(self._sum).eigenvectors.flip(1).T[:k]
        # An eigenvector's sign is arbitrary: make its largest entry positive, so that every machine agrees.
        largest = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
        return (vectors * largest.sign()).float()

    def kept(self, k: int) -> float:
        """Return the share of the squared length that the `k` leading directions keep."""
        values = torch.linalg.eigvalsh(self._sum).flip(0)
        return float(values[:k].sum() / values.sum())
