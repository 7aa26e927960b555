"""`AttentionPooling` against a loop over documents and clusters; untrained, it is Ward's method."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from latelier.embeddings import TokenEmbeddings
from latelier.models import pool_tokens
from latelier.modules import AttentionPooling

DIM = 8


def trained(num_vectors: int = 3, **arguments) -> AttentionPooling:
    torch.manual_seed(0)
    pooling = AttentionPooling(DIM, num_vectors, heads=2, dim_head=4, hidden_dim=5, **arguments).eval()
    for parameter in pooling.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.3)
    return pooling


def batch(*lengths: int, holes: bool = False) -> dict[str, torch.Tensor]:
    """Features of documents with these numbers of tokens; with holes, masked tokens stand between them."""
    torch.manual_seed(1)
    width = max(lengths, default=0) * (2 if holes else 1)
    mask = torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, length in zip(mask, lengths, strict=True):
        row[torch.randperm(width)[:length] if holes else slice(length)] = True
    return {"token_embeddings": torch.randn(len(lengths), width, DIM) * 3, "attention_mask": mask}


def rows(features: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [
        vectors[mask] for vectors, mask in zip(features["token_embeddings"], features["attention_mask"], strict=True)
    ]


def naive(pooling: AttentionPooling, tokens: torch.Tensor) -> torch.Tensor:
    units = [token / token.norm() for token in tokens]
    scaled = [unit * DIM**0.5 for unit in units]
    weights = [pooling.importance(each).clamp(-4, 4).exp() for each in scaled]
    labels = naive_ward(units, [weight.item() for weight in weights], pooling.num_vectors)
    out = []
    attention = pooling.attention
    for cluster in range(max(labels) + 1):
        mean = sum(w * u for w, u, label in zip(weights, units, labels, strict=True) if label == cluster)
        mean = mean / mean.norm()
        query = attention.to_q(mean * DIM**0.5 + pooling.queries[cluster]).view(2, 4)
        keys = [attention.to_k(each).view(2, 4) for each in scaled]
        values = [attention.to_v(each).view(2, 4) for each in scaled]
        heads = []
        for head in range(2):
            logits = [query[head] @ key[head] / 4**0.5 for key in keys]
            outside = [label != cluster for label in labels]
            logits = [z - pooling.penalty[head] * far for z, far in zip(logits, outside, strict=True)]
            shares = torch.stack(logits).softmax(0)
            heads.append(sum(share * value[head] for share, value in zip(shares, values, strict=True)))
        out.append(mean + attention.to_out[0](torch.cat(heads)))
    return torch.stack(out)


def naive_ward(units: list[torch.Tensor], weights: list[float], clusters: int) -> list[int]:
    """Merge the two clusters whose union costs least, until the wanted number is left; label by first tokens."""
    square = [[float(1 - u @ v) ** 2 if u is not v else 0.0 for v in units] for u in units]

    def between(left: list[int], right: list[int]) -> float:
        total = sum(weights[i] * weights[j] * square[i][j] for i in left for j in right)
        return total / (sum(weights[i] for i in left) * sum(weights[j] for j in right))

    def cost(left: list[int], right: list[int]) -> float:
        a, b = sum(weights[i] for i in left), sum(weights[j] for j in right)
        gap = between(left, right) - between(left, left) / 2 - between(right, right) / 2
        return 2 * a * b / (a + b) * gap

    found = [[i] for i in range(len(units))]
    while len(found) > clusters:
        pairs = [(i, j) for i in range(len(found)) for j in range(i)]
        i, j = min(pairs, key=lambda pair: cost(found[pair[0]], found[pair[1]]))
        found[j] += found.pop(i)
    found.sort(key=min)
    return [next(c for c, members in enumerate(found) if i in members) for i in range(len(units))]


def test_untrained_it_is_wards_method():
    features = batch(20, 40)
    documents = TokenEmbeddings.from_list([F.normalize(each, dim=-1) for each in rows(features)])
    pooled = AttentionPooling(DIM, 10)(dict(features))
    first, second = rows(pooled)
    torch.testing.assert_close(first, pool_tokens(documents, 2, protected_tokens=0)[0])
    torch.testing.assert_close(second, pool_tokens(documents, 4, protected_tokens=0)[1])


@pytest.mark.parametrize("holes", [False, True])
def test_numbers_are_those_of_the_loop(holes):
    pooling, features = trained(), batch(9, 1, 4, 3, holes=holes)
    pooled = pooling(dict(features))
    assert pooled["attention_mask"].sum(dim=1).tolist() == [3, 1, 3, 3]
    for vectors, tokens in zip(rows(pooled), rows(features), strict=True):
        torch.testing.assert_close(vectors, naive(pooling, tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [AttentionPooling, lambda dim, k: trained(k)], ids=["untrained", "trained"])
def test_short_and_empty_documents_have_no_vectors_to_spare(make):
    features = batch(0, 1, 2, 5)
    pooled = make(DIM, 4)(dict(features))
    assert pooled["attention_mask"].tolist() == [
        [False] * 4,
        [True] + [False] * 3,
        [True, True, False, False],
        [True] * 4,
    ]
    assert not pooled["token_embeddings"][~pooled["attention_mask"]].any()
    untrained = AttentionPooling(DIM, 4)(dict(features))
    torch.testing.assert_close(rows(untrained)[2], F.normalize(rows(features)[2], dim=-1))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_token_that_is_not_finite_spoils_its_own_document_alone(wrong):
    pooling, features = trained(), batch(20, 9)
    expected = rows(pooling(dict(features)))
    features["token_embeddings"][0, 3] = wrong
    spoilt, other = rows(pooling(dict(features)))
    assert spoilt.isnan().any()
    torch.testing.assert_close(other, expected[1])


def test_gradients_pass_by_empty_documents():
    pooling, features = trained().train(), batch(0, 7, 1)
    features["token_embeddings"].requires_grad_()
    pooling(dict(features))["token_embeddings"].pow(3).sum().backward()
    gradient = features["token_embeddings"].grad
    assert gradient.isfinite().all()
    assert gradient.any(dim=-1).tolist() == features["attention_mask"].tolist()
    assert all(parameter.grad.any() for parameter in pooling.parameters())


def test_pool_takes_a_list_as_other_poolings_do():
    pooling, features = trained(), batch(9, 1, 3)
    with torch.inference_mode():
        listed = pooling.pool(rows(features))
        pooled = pooling(dict(features))
    for one, vectors in zip(listed, rows(pooled), strict=True):
        torch.testing.assert_close(one, F.normalize(vectors, dim=-1))
