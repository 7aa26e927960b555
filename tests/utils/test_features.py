"""Rows of features: cut out without columns that only other rows need, query expansion counting as used."""

import numpy as np
import torch

from latelier.utils.features import select_rows, used_positions

IDS = torch.tensor([[5, 6, 0, 0], [5, 7, 8, 6], [0, 9, 6, 0]])


def test_columns_are_cut_on_both_sides_and_other_values_kept():
    features = {"input_ids": IDS, "attention_mask": (IDS > 0).long(), "task": "query", "n": torch.arange(3)}
    used = used_positions(features)
    assert used.dtype == torch.bool
    chosen = select_rows(features, used, np.array([2]))
    assert chosen["input_ids"].tolist() == [[9, 6]]
    assert chosen["attention_mask"].tolist() == [[1, 1]]
    assert (chosen["task"], chosen["n"].tolist()) == ("query", [0, 1, 2])
    assert select_rows(features, used, np.array([2, 0]))["input_ids"].tolist() == [[0, 9, 6], [5, 6, 0]]


def test_query_expansion_is_used():
    expansion = torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    features = {"input_ids": IDS, "attention_mask": IDS > 0, "query_expansion_positions": expansion}
    assert select_rows(features, used_positions(features), np.array([0]))["input_ids"].tolist() == [[5, 6, 0]]


def test_rows_without_a_token_keep_their_width():
    features = {"attention_mask": torch.zeros(2, 3)}
    assert select_rows(features, used_positions(features), np.array([1]))["attention_mask"].shape == (1, 3)
