"""Kernels keep to the instructions that numba may use, also where the processor has more."""

import os
import platform
import re
import subprocess
import sys

import llvmlite.binding as llvm
import numba
import pytest
from llvmlite import ir

from latelier.errors import InvalidArgumentError
from latelier.kernels.jit import ROWS, at, constant, has_features
from latelier.kernels.multiply import INSTRUCTION_SETS, Factors, instruction_set, multiply_floats, supported

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
    """The kernels that a new process chooses, and its scores per type of number."""
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


# The inner loops that LLVM makes for each processor: the instructions that were meant, and no sums kept in memory. LLVM
# compiles for any processor on any other, so loops for ARM are checked on x86, and those for x86 on ARM.

new_llvm = pytest.mark.skipif(
    llvm.llvm_version_info[0] < 20, reason="the loops of older releases of LLVM have other instructions around them"
)
X86, ARM, APPLE = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "arm64-apple-darwin"
STACK = re.compile(r"\(%rsp|\[sp")


def assembly(emit, triple, cpu):
    """Compile a function of four addresses or numbers with `emit(builder, arguments)`; return its innermost loops."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 4), "kernel")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    emit(builder, list(function.args))
    builder.ret_void()
    try:
        machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    except RuntimeError as error:
        pytest.skip(f"this build of LLVM is not for {triple}: {error}")
    module.triple, module.data_layout = triple, str(machine.target_data)
    parsed = llvm.parse_assembly(str(module))
    llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3)).getModulePassManager().run(
        parsed, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    )
    return inner_loops(machine.emit_assembly(parsed))


def inner_loops(text):
    """The instructions from each label to the jump back to it, if there is no label between."""
    loops, label, body = [], None, []
    for line in text.splitlines():
        found = re.match(r"(\.?LBB\w+):", line)
        if found:
            label, body = found[1], []
            continue
        words = line.split("#")[0].split(";")[0].split("//")[0].split()
        if not words or words[0].startswith("."):
            continue
        body.append(" ".join(words))
        if label and words[-1] == label and re.match(r"j|b\.|cbn?z|tbn?z", words[0]):
            loops.append(body)
            label, body = None, []
    return loops


def dot_products_of_floats(isa):
    def emit(builder, arguments):
        rows, query, words, out = arguments
        for r, totals in enumerate(multiply_floats(builder, isa.tile, rows, query, words)):
            for g, total in enumerate(totals):
                place = builder.add(out, constant(64 * (r * isa.tile.groups + g)))
                builder.store(total, at(builder, place, total.type), align=4)

    return emit


def dot_products_of_bytes(isa, lanes=16):
    def emit(builder, arguments):
        rows, query, words, out = arguments
        start = builder.add(query, builder.mul(words, constant(64)))
        factors = Factors(rows, [(query, start)], words, ROWS, lanes=lanes)
        for r, total in enumerate(isa.products.multiply(builder, factors)):
            builder.store(total, at(builder, builder.add(out, constant(64 * r)), total.type), align=4)

    return emit


# instruction set, processor, how many multiplications; on ARM, one element of a register and no copy of it (dup, ld1r)
FLOATS, BYTES = dot_products_of_floats, dot_products_of_bytes
LOOPS = [
    (FLOATS, "avx512vnni", X86, "cascadelake", {r"vfmadd\d+ps %zmm": 64, "vbroadcastss": 32, "vmovups": 8}),
    (FLOATS, "avx2", X86, "haswell", {r"vfmadd\d+ps %ymm": 48, "vbroadcastss": 24, "vmovups": 8}),
    (FLOATS, "neon", ARM, "cortex-a72", {r"fmla.*\[[0-3]\]": 64, "dup|ld1r": 0}),
    (BYTES, "avx512vnni", X86, "cascadelake", {"vpdpbusd.*%zmm": 8, "vpbroadcastd": 8}),
    (BYTES, "avx2", X86, "haswell", {"vpmaddwd.*%ymm": 8, "vpaddd": 8, "vpmovsxbw": 2, "vpbroadcastq": 4}),
    (BYTES, "generic", X86, "x86-64", {"pmaddwd": 8, "paddd": 8}),
    (BYTES, "dotprod", APPLE, "apple-m1", {r"sdot.*\[[0-3]\]": 64, "eor": 4}),
]


@new_llvm
@pytest.mark.parametrize(("multiply", "name", "triple", "cpu", "expected"), LOOPS)
def test_products_are_added_up_in_registers(multiply, name, triple, cpu, expected):
    loops = assembly(multiply(INSTRUCTION_SETS[name]), triple, cpu)
    assert loops
    for loop in loops:
        found = {pattern: sum(re.match(pattern, line) is not None for line in loop) for pattern in expected}
        assert found == expected
        assert not any(map(STACK.search, loop))
