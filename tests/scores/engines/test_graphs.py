"""Scoring stays out of compiled graphs, and those who compile nothing do not pay for the compiler."""

import subprocess
import sys

import torch

from latelier.scores import colbert_scores


def test_indexes_and_scores_import_neither_transformers_nor_the_compiler_of_torch():
    """Embeddings of other libraries need no transformers."""
    program = """
import sys, torch
from latelier import indexes, scores
rows = torch.eye(2, requires_grad=True)
scores.colbert_scores([rows], [rows]).sum().backward()
unwanted = {"sympy", "torch._dynamo", "transformers", "sentence_transformers"}
print(sorted(unwanted & sys.modules.keys()), rows.grad.tolist())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[] [[2.0, 0.0], [0.0, 2.0]]\n"


def test_inside_a_compiled_function_scores_and_gradients_are_the_same():
    queries, documents = torch.eye(3)[None, :2], torch.eye(3)[None].requires_grad_()

    def score(documents):
        return colbert_scores(queries * 2, documents).sum() * 3

    torch.compile(score, backend="eager")(documents).backward()
    assert documents.grad[0].tolist() == [[6.0, 0.0, 0.0], [0.0, 6.0, 0.0], [0.0, 0.0, 0.0]]
