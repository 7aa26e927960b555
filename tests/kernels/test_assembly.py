"""The inner loops that LLVM makes for each processor: the instructions that were meant, and no sums kept in memory.

LLVM compiles for any processor on any other, so loops for ARM are checked on x86, and those for x86 on ARM.
"""

import re

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from latelier.kernels.jit import ROWS, at, constant
from latelier.kernels.multiply import INSTRUCTION_SETS, multiply_floats

pytestmark = pytest.mark.skipif(
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
        for r, total in enumerate(isa.products.multiply(builder, rows, [(query, start)], words, ROWS, lanes=lanes)):
            builder.store(total, at(builder, builder.add(out, constant(64 * r)), total.type), align=4)

    return emit


FLOAT_LOOPS = [
    # instruction set, processor, how many multiplications, loads of rows and of query tokens
    ("avx512vnni", X86, "cascadelake", {r"vfmadd\d+ps %zmm": 64, "vbroadcastss": 32, "vmovups": 8}),
    ("avx2", X86, "haswell", {r"vfmadd\d+ps %ymm": 48, "vbroadcastss": 24, "vmovups": 8}),
    ("generic", X86, "x86-64", {"mulps": 32, "addps": 32}),
    # fmla takes one element of a register: no copies of it (dup, ld1r)
    ("dotprod", APPLE, "apple-m1", {r"fmla.*\[[0-3]\]": 64, "dup|ld1r": 0}),
    ("neon", ARM, "cortex-a72", {r"fmla.*\[[0-3]\]": 64, "dup|ld1r": 0}),
]
BYTE_LOOPS = [
    ("avx512vnni", X86, "cascadelake", {"vpdpbusd.*%zmm": 8, "vpbroadcastd": 8}),
    ("avx512", X86, "skylake-avx512", {"vpmaddwd.*%zmm": 8, "vpaddd": 8, "vpmovsxbw": 2, "vpbroadcastq": 4}),
    ("avxvnni", X86, "alderlake", {r"\{vex\} vpdpbusd.*%ymm": 16, "vpbroadcastd": 8}),
    ("avx2", X86, "haswell", {"vpmaddwd.*%ymm": 8, "vpaddd": 8, "vpmovsxbw": 2, "vpbroadcastq": 4}),
    ("generic", X86, "x86-64", {"pmaddwd": 8, "paddd": 8}),
    ("dotprod", APPLE, "apple-m1", {r"sdot.*\[[0-3]\]": 64, "eor": 4}),
]


@pytest.mark.parametrize(("name", "triple", "cpu", "expected"), FLOAT_LOOPS)
def test_floats_are_multiplied_in_registers(name, triple, cpu, expected):
    loops = assembly(dot_products_of_floats(INSTRUCTION_SETS[name]), triple, cpu)
    assert loops
    assert other_loops(loops, expected) == []


@pytest.mark.parametrize(("name", "triple", "cpu", "expected"), BYTE_LOOPS)
def test_integers_are_multiplied_in_registers(name, triple, cpu, expected):
    loops = assembly(dot_products_of_bytes(INSTRUCTION_SETS[name]), triple, cpu)
    assert loops
    assert other_loops(loops, expected) == []


@pytest.mark.parametrize(("lanes", "loops"), [(4, 1), (8, 2), (12, 3), (16, 4)])
def test_fewer_query_tokens_are_multiplied_in_fewer_loops(lanes, loops):
    found = assembly(dot_products_of_bytes(INSTRUCTION_SETS["avx2"], lanes), X86, "haswell")
    assert other_loops(found, {"vpmaddwd.*%ymm": 8, "vpaddd": 8}) == []
    assert len(found) == loops


def other_loops(loops, expected):
    """Return the loops that have another number of some instructions, or use the stack."""

    def is_expected(loop):
        found = {pattern: sum(re.match(pattern, line) is not None for line in loop) for pattern in expected}
        return found == expected and not any(map(STACK.search, loop))

    return [loop for loop in loops if not is_expected(loop)]
