"""Linear projections to fewer dimensions that need no training: a random rotation, or PCA in closed form."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense

from latelier.errors import InvalidArgumentError
from latelier.models.inputs import checked_stream
from latelier.utils import check_count
from latelier.utils.features import move_features
from latelier.utils.misc import progress_bar

__all__ = ["SecondMoment", "fit_pca", "orthogonal_weight"]


def orthogonal_weight(out_features: int, in_features: int) -> torch.Tensor:
    """Return a random matrix with orthonormal rows (orthonormal columns where it is taller than wide).

    Projecting to random orthonormal directions preserves inner products on average (Johnson-Lindenstrauss). The seed is
    fixed: the same shape gives the same matrix in every call and on every machine.

    Parameters
    ----------
    out_features, in_features
        Shape of the matrix.

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
    torch.nn.init.orthogonal_(weight, generator=torch.Generator().manual_seed(0))
    return weight


class SecondMoment:
    """The second moment of unit vectors, summed batch by batch, and its principal directions.

    PCA without centring: the leading eigenvectors of the second moment preserve inner products best (Eckart-Young), and
    MaxSim consists of inner products. Subtracting a mean would need a bias in the projection.

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


def fit_pca(model: MultiVectorEncoder, texts: Iterable[str], batch_size: int, show_progress_bar: bool) -> None:
    """Set the weight of the model's last linear layer to the principal directions of that layer's inputs.

    Parameters
    ----------
    model
        A model whose last `Dense` is the projection to fit.
    texts
        Documents, read batch by batch.
    batch_size
        Texts per batch.
    show_progress_bar
        Show a progress bar on standard error.

    Raises
    ------
    InvalidArgumentError
        If the texts have fewer tokens than the projection has dimensions.
    """
    position, projection = [(i, module) for i, module in enumerate(model) if isinstance(module, Dense)][-1]
    moment = SecondMoment(projection.in_features)
    model.eval()
    check_count("batch_size", batch_size)
    remaining = checked_stream([texts] if isinstance(texts, str) else texts)
    with torch.inference_mode(), progress_bar(shown=show_progress_bar, desc="Fitting projection", unit="text") as bar:
        while batch := list(islice(remaining, batch_size)):
            features = move_features(model.preprocess(batch, task="document"), model.device)
            for module in list(model)[:position]:
                features = module(features)
            moment.add(features["token_embeddings"][features["attention_mask"].bool()])
            bar.update(len(batch))
    if moment.count < projection.out_features:
        raise InvalidArgumentError(
            f"the texts have {moment.count} tokens, too few to fit {projection.out_features} dimensions; "
            "give more texts."
        )
    with torch.no_grad():
        projection.linear.weight.copy_(moment.directions(projection.out_features))
