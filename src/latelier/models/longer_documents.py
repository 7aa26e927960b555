"""One document encoded up to another length than the model's: what a higher `max_length_document` would give."""

from __future__ import annotations

import numpy as np
import torch

from latelier.models.colbert import ColBERT
from latelier.models.construction import encoder_module, length_limit
from latelier.models.tokens import tokenizer_lock
from latelier.utils.features import move_features

__all__ = ["document_length", "encode_up_to"]


def document_length(model: ColBERT, text: str) -> int | None:
    """Return the number of tokens of a whole document, markers included; None if it is more than the model reads."""
    prompt = model.prompts.get("document") or ""
    with tokenizer_lock(model.tokenizer):
        count = len(model.tokenizer(prompt + text, truncation=False, verbose=False)["input_ids"])
    limit = length_limit(encoder_module(model))
    return count if limit is None or count <= limit else None


def encode_up_to(model: ColBERT, text: str, max_length: int) -> np.ndarray:
    """Return the token vectors of one document that is truncated to another length, ``(tokens, dim)`` float32.

    `max_length`: maximum number of tokens, markers included.

    Examples
    --------
    >>> from latelier.models import load
    >>> model = load("all-MiniLM-L6-v2", device="cpu", max_length_document=4)
    >>> encode_up_to(model, "a pear and a fig", 7).shape
    (7, 384)
    """
    model.eval()
    features = model.tokenize([text], is_query=False, max_length=max_length)
    with torch.inference_mode():
        out = model(move_features(features, model.device), task="document")
    vectors = out["token_embeddings"][0][out["attention_mask"][0].bool()].float()
    if model.truncate_dim is not None:
        vectors = torch.nn.functional.normalize(vectors[:, : model.truncate_dim], dim=-1)
    encoded: np.ndarray = vectors.cpu().numpy()
    return encoded
