"""Encoding in worker processes gives the same embeddings, and needs no open file per text."""

import subprocess
import sys

import pytest
import torch

MANY = 1100
SCRIPT = f"""
import resource, sys, torch
from latelier.models import ColBERT

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    model = ColBERT.from_dense(sys.argv[1], "orthogonal", 8, device="cpu")
    texts = [f"pear {{i}}" for i in range({MANY})]
    pool = model.start_multi_process_pool(["cpu"])
    try:
        encoded = model.encode_document(texts, pool=pool, packed=True)
    finally:
        model.stop_multi_process_pool(pool)
    few = [0, 555, {MANY - 1}]
    same = [torch.allclose(encoded[i], model.encode_document(texts[i]), atol=1e-5) for i in few]
    print(len(encoded), same)
"""


def test_more_texts_than_open_files_are_allowed(tiny, tmp_path):
    pytest.importorskip("resource", reason="limits on open files are POSIX")
    script = tmp_path / "many.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script, tiny], capture_output=True, text=True, timeout=300)
    assert done.stdout.split("\n")[0] == f"{MANY} [True, True, True]", done.stderr[-2000:]


def test_a_joined_chunk_is_split_into_what_it_was():
    from latelier.models.workers import JoinedChunk

    matrices = [torch.randn(3, 2), torch.randn(0, 2), torch.randn(1, 2)]
    again = JoinedChunk.of(matrices).split()
    assert [torch.equal(a, b) for a, b in zip(matrices, again, strict=True)] == [True, True, True]
