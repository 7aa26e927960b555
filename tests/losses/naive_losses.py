"""The losses as Python loops over single similarities, and a small encoder on which they can be followed by hand."""

import torch
from torch import nn

from naive import naive_tensor_maxsim


class Lexicon(nn.Module):
    """A late-interaction encoder without context: each token id has one vector, whatever stands around it."""

    def __init__(self, vocabulary=30, dim=6, skiplist=(1, 2, 3), dtype=torch.float32):
        super().__init__()
        self.table = nn.Embedding(vocabulary, dim, dtype=dtype)
        self.skiplist = skiplist

    def forward(self, features, task=None):
        mask = features["attention_mask"].bool()
        if task == "document":
            mask = mask & ~torch.isin(features["input_ids"], torch.tensor(self.skiplist))
        features["token_embeddings"] = self.vectors(features["input_ids"])
        features["attention_mask"] = mask
        return features

    def vectors(self, ids):
        return nn.functional.normalize(self.table(ids), dim=-1)

    def one(self, ids, task):
        kept = [i for i in ids if task == "query" or i not in self.skiplist]
        return self.vectors(torch.tensor(kept))


def features(texts, task):
    """Token ids as a tokeniser would batch them: padded with 0, with a mask."""
    width = max(map(len, texts))
    ids = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts])
    return {"input_ids": ids, "attention_mask": mask, "task": task}


def vocabulary_texts(count, seed, longest=7, lowest=1):
    """Texts of 1 to `longest` random token ids, each ending in one that no skiplist holds."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest, (count,), generator=generator).tolist()
    ends = torch.randint(4, 30, (count,), generator=generator).tolist()
    bodies = [torch.randint(lowest, 30, (n,), generator=generator).tolist() for n in lengths]
    return [[*body, end] for body, end in zip(bodies, ends, strict=True)]


def score_each(query, documents):
    return [naive_tensor_maxsim(widen(query), widen(document)) for document in documents]


def embed(model, text, is_query):
    out = model(model.tokenize([text], is_query=is_query))
    return out["token_embeddings"][0][out["attention_mask"][0].bool()]


def widen(matrix):
    return matrix.float() if matrix.dtype in (torch.float16, torch.bfloat16) else matrix


def log_softmax(values):
    top = max(value.item() for value in values)
    norm = torch.log(sum(torch.exp(value - top) for value in values)) + top
    return [value - norm for value in values]


def naive_distillation(scores, labels, normalize=True, mean=True):
    """`scores` and `labels`: for each query, one number per candidate."""
    total = 0.0
    for row, teacher in zip(scores, labels, strict=True):
        if normalize:
            low, high = min(row, key=torch.Tensor.item), max(row, key=torch.Tensor.item)
            row = [(value - low) / (high - low + 1e-8) for value in row]
        target = log_softmax([torch.tensor(float(label)) for label in teacher])
        total = total + sum(torch.exp(t) * (t - s) for s, t in zip(log_softmax(row), target, strict=True))
    return total / len(scores) if mean else total


def naive_contrastive(scores, per_query, temperature=1.0, mean=True):
    """`scores`: for each query, its score against every document of the batch, grouped by query."""
    total = 0.0
    for i, row in enumerate(scores):
        total = total - log_softmax([value / temperature for value in row])[i * per_query]
    return total / len(scores) if mean else total
