"""The kernels as CUDA: NVRTC compiles them without a GPU, and PTX names every operation."""

import re

import pytest

from services.generation.target.gpu.kernels import STORAGES

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings, of the extra gpu, is not installed")

ARITHMETIC = re.compile(r"^\s+((?:add|sub|mul|fma|mad|div|sqrt|rcp|rsqrt|ex2|tanh)\.[\w.]*f32)", re.MULTILINE)


def inexact(ptx: str) -> set[str]:
    """Operations that are not rounded to nearest, or flush subnormal numbers."""
    found = set(ARITHMETIC.findall(ptx))
    return {each for each in found if ".rn" not in each or "approx" in each or "ftz" in each}


def compiled(*options: str) -> str:
    from services.generation.target.gpu import cuda

    try:
        return cuda.compiled({"q8_0"}, "compute_80", options or cuda.OPTIONS)
    except RuntimeError as error:  # the library itself is not installed
        pytest.skip(f"NVRTC is missing: {error}")


@pytest.mark.slow
def test_every_operation_is_rounded_once_and_none_is_contracted() -> None:
    ptx = compiled()
    assert inexact(ptx) == set()
    assert {"add.rn.f32", "mul.rn.f32", "fma.rn.f32"} <= set(ARITHMETIC.findall(ptx))
    assert not re.search(r"\b(div|sqrt)\.", "\n".join(ARITHMETIC.findall(ptx)))  # these are the kernels' own
    assert len(re.findall(r"\.entry (\w+)", ptx)) > 15


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--fmad=true", pytest.param("--use_fast_math", marks=pytest.mark.long)])
def test_options_that_allow_other_bits_are_seen(option: str) -> None:
    assert inexact(compiled("--std=c++17", option))


@pytest.mark.long
def test_all_kinds_of_weights_compile() -> None:
    from services.generation.target.gpu import cuda

    compiled()  # skips without NVRTC
    assert "int8_q6_k_4" in cuda.compiled(STORAGES, "compute_90")
