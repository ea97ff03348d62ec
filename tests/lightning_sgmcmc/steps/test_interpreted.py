"""Triton's kernels without a GPU: by its interpreter, in a process of its own, and compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton comes with torch for GPUs")

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def python(*arguments: str, **environment: str) -> str:
    """Run Python from the project's root; return its output."""
    end = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert end.returncode == 0, end.stdout[-4000:] + end.stderr[-4000:]
    return end.stdout


def interpret(file: str, *options: str) -> None:
    """Run tests beside this one with the interpreter; none may be skipped, some must pass."""
    quiet = ("-n", "0", "-q", "-x", "-p", "no:cacheprovider")
    found = python("-m", "pytest", *quiet, *options, str(HERE / file), TRITON_INTERPRET="1")
    assert " passed" in found
    assert "skipped" not in found


def test_the_steps_are_the_formula_s() -> None:
    interpret("test_triton_loops.py")


def test_an_override_acts_in_place_of_a_kernel() -> None:
    overrides = "test_an_override_acts and (SGHMC+Identity or SGNHT)"
    stood_for = "test_what_is_not_called and (SGLD+RMSProp or SGHMC+Identity or SGNHT)"
    chosen = f"test_which or ({overrides}) or ({stood_for} and not floor)"
    interpret("test_implementations.py", "-k", chosen)


COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lightning_sgmcmc.kernels import triton_noise, triton_steps

def ptx(kernel, types, **constants):
    signature = dict(zip(kernel.arg_names, types.split())) | dict.fromkeys(constants, "constexpr")
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places)
    return compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]

found = [
    ptx(triton_noise._fill, "*fp32 *i64 i32 i64", MATCHED=True, COUNT=1024),
    ptx(triton_steps._langevin, "*i64 *i64 *i64 i32 fp32 fp32 fp32 fp32",
        ROOT=True, MATCHED=False, COUNT=1024),
    ptx(triton_steps._underdamped, "*i64 *i64 *i64 i32 *fp32 fp32 fp32 fp32 fp32 fp32 fp32",
        ROOT=True, KICK=True, NOISE=True, EACH=True, COUNT=1024),
    ptx(triton_steps._rmsprop, "*i64 *i64 fp32 fp32", COUNT=1024),
]
assert not any(".local" in text for text in found), "a kernel spills its registers to memory"
"""


def test_the_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """For compute capability 9.0, to machine code; nothing lies in a thread's own memory."""
    backends = pytest.importorskip("triton.backends")
    if "nvidia" not in backends.backends:
        pytest.skip("this Triton has no compiler for NVIDIA")
    python("-c", COMPILE, TRITON_CACHE_DIR=str(tmp_path))
