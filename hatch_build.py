"""Compile the kernels of csrc into one shared library: for a wheel, or into src for an editable install.

``python hatch_build.py`` compiles it into src. The compiler is the package ``ziglang``, so that a machine needs none.
The environment variable ``LATELIER_PLATFORM`` builds the wheel of another platform, by its tag in `TARGETS`.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
CSRC = ROOT / "csrc"
# A folder of its own, since Python takes a file of this kind beside its modules for one of them.
COMPILED = "latelier/kernels/compiled"

# The tags of wheels, and what Zig calls these platforms.
TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
}
# The instruction sets of each architecture, and the processors that Zig is to compile for. csrc/processor.c has the
# same names, and chooses. Clang would split vectors of 512 bits for processors with AVX-512 in general.
_AVX512 = "-mprefer-vector-width=512"
INSTRUCTION_SETS = {
    "x86_64": {
        "generic": ["-mcpu=x86_64_v2"],
        "avx2": ["-mcpu=x86_64_v3"],
        "avxvnni": ["-mcpu=x86_64_v3+avxvnni"],
        "avx512": ["-mcpu=x86_64_v4", _AVX512],
        "avx512vnni": ["-mcpu=x86_64_v4+avx512vnni", _AVX512],
        "avx512bf16": ["-mcpu=x86_64_v4+avx512vnni+avx512bf16", _AVX512],
    },
    "aarch64": {"neon": ["-mcpu=generic"], "dotprod": ["-mcpu=generic+dotprod"]},
}
_FLAGS = [
    *("-std=gnu11", "-O3", "-fPIC", "-fvisibility=hidden", "-fomit-frame-pointer", "-fno-math-errno"),
    *("-ffp-contract=off", "-fno-sanitize=undefined", "-Wall", "-Werror"),
]


def own_platform() -> str:
    """Return the tag of this machine's wheels."""
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    if sys.platform == "linux":
        libc = "musllinux_1_2" if "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or "") else "manylinux_2_17"
        return f"{libc}_{machine}"
    if sys.platform == "darwin":
        return "macosx_11_0_" + {"aarch64": "arm64"}.get(machine, machine)
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def library_name(tag: str) -> str:
    """Return the name of the library's file on a platform."""
    if tag.startswith("win"):
        return "kernels.dll"
    return "kernels.dylib" if tag.startswith("macosx") else "kernels.so"


def compile_kernels(tag: str, path: Path) -> None:
    """Compile the library of a platform."""
    target = TARGETS.get(tag)  # None: Zig compiles for this machine
    machine = (target or platform.machine()).split("-")[0]
    sets = INSTRUCTION_SETS.get(machine, {"generic": []})
    cache = ROOT / "build" / "zig"
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "ziglang", "cc", *(["-target", target] if target else [])]

    def run(*arguments: str | Path) -> None:
        done = subprocess.run([*command, *map(str, arguments)], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the kernels cannot be compiled:\n{done.stderr}")

    with TemporaryDirectory() as folder:
        units = [(CSRC / "kernels.c", isa) for isa in sets]
        units.append((CSRC / "processor.c", next(iter(sets))))
        objects = [Path(folder, f"{source.stem}-{isa}.o") for source, isa in units]

        def compile_unit(unit: tuple[Path, str], out: Path) -> None:
            source, isa = unit
            run(*_FLAGS, *sets[isa], f"-DISA={isa}", "-c", source, "-o", out)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_unit, units, objects))
        path.parent.mkdir(parents=True, exist_ok=True)
        built = path.with_name(f"{path.name}.new")
        run("-shared", "-s", *objects, "-o", built)
        built.replace(path)  # at once: processes may have loaded the file that it replaces


class KernelHook(BuildHookInterface[Any]):
    """Compiles the library into src, or adds it to a wheel, whose tag is then that of the platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run before hatchling collects the files; `version` is "standard" or "editable"."""
        if version == "editable":
            compile_own()
            return
        tag = os.environ.get("LATELIER_PLATFORM") or own_platform()
        path = ROOT / "build" / tag / library_name(tag)
        compile_kernels(tag, path)
        build_data["tag"] = f"py3-none-{tag}"
        build_data["pure_python"] = False
        build_data["force_include"][str(path)] = f"{COMPILED}/{path.name}"


def compile_own() -> None:
    """Compile the library of this machine into src, where an editable install and a checkout find it."""
    compile_kernels(own_platform(), ROOT / "src" / COMPILED / library_name(own_platform()))


if __name__ == "__main__":
    compile_own()
