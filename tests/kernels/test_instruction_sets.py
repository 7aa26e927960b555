"""Kernels keep to the instructions that numba may use, also where the processor has more."""

import os
import platform
import subprocess
import sys

import llvmlite.binding as llvm
import numba
import pytest

from latelier.errors import InvalidArgumentError
from latelier.kernels.jit import has_features
from latelier.kernels.multiply import INSTRUCTION_SETS, instruction_set, supported

PROGRAM = """
import sys, torch
from latelier.embeddings import TokenEmbeddings
from latelier.scores import colbert_scores
from latelier.kernels.multiply import instruction_set
print(instruction_set().name, instruction_set().multiplies_bfloat16)
generator = torch.Generator().manual_seed(0)
queries, documents = torch.randn(2, 3, 32, generator=generator), torch.randn(5, 4, 32, generator=generator)
for dtype in sys.argv[1:]:
    sides = [TokenEmbeddings.from_list(list(side)).to(dtype) for side in (queries, documents)]
    print(*(f"{score:.3f}" for score in colbert_scores(*sides).flatten().tolist()))
"""

x86 = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="the names of instructions are those of x86"
)


def run(*dtypes, **settings):
    forced = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "LATELIER_KERNELS")
    environment = {name: value for name, value in os.environ.items() if name not in forced} | settings
    command = [sys.executable, "-c", PROGRAM, *dtypes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr  # LLVM aborts at an instruction that it was not allowed
    kernels, *scores = done.stdout.splitlines()
    return kernels, [[float(score) for score in line.split()] for line in scores]


@pytest.fixture(scope="module")
def native():
    return run("float16", "bfloat16", "int8")


@pytest.mark.slow
@x86
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"NUMBA_CPU_NAME": "generic"}, "generic"),
        ({"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c,-avx512f"}, "avx2"),
    ],
    ids=["generic", "haswell"],
)
def test_kernels_ask_for_no_instruction_that_numba_was_kept_from(settings, expected, native):
    """All with one cache on disk: kernels for one set of instructions are none for another."""
    if expected not in [isa.name for isa in supported()]:
        pytest.skip(f"this processor does not support {expected}")
    kernels, forced = run("float16", "bfloat16", "int8", **settings)
    assert kernels == f"{expected} False"
    for found, wanted in zip(forced, native[1], strict=True):
        assert found == pytest.approx(wanted, abs=0.002)


def test_each_supported_instruction_set_can_be_forced_by_its_name(monkeypatch):
    assert {"generic"} <= {isa.name for isa in supported()} <= INSTRUCTION_SETS.keys()
    monkeypatch.setenv("LATELIER_KERNELS", "sse2")
    with pytest.raises(InvalidArgumentError, match="LATELIER_KERNELS='sse2'; this processor supports"):
        instruction_set()
    for name, isa in INSTRUCTION_SETS.items():
        monkeypatch.setenv("LATELIER_KERNELS", name)
        if isa.is_supported:
            assert instruction_set() is isa
        else:
            with pytest.raises(InvalidArgumentError, match=f"'{name}'; this processor supports"):
                instruction_set()


@pytest.mark.parametrize(
    ("machine", "name", "expected"),
    [
        ("arm64", "apple-m1", "dotprod"),  # macOS
        ("aarch64", "neoverse-n1", "dotprod"),
        ("aarch64", "cortex-a72", "neon"),
        ("riscv64", "sifive-u74", "generic"),
    ],
)
def test_processors_whose_features_llvm_does_not_list(monkeypatch, machine, name, expected):
    def unknown():
        raise RuntimeError("failed to get host cpu features.")

    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(llvm, "get_host_cpu_features", unknown)
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: name)
    monkeypatch.setattr(numba.config, "CPU_FEATURES", None, raising=False)
    has_features.cache_clear()
    try:
        best = next(isa.name for isa in INSTRUCTION_SETS.values() if isa.is_supported)
    finally:
        has_features.cache_clear()
    assert best == expected
