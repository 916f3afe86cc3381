"""The kernels as CUDA: NVRTC compiles them without a GPU, and PTX names every operation."""

import re
from itertools import count
from pathlib import Path

import pytest

from services.generation.target.errors import TargetError
from services.generation.target.gpu.device import DeviceLost, DeviceUnavailable
from services.generation.target.gpu.source import STORAGES, kept

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings, of the extra gpu, is not installed")

ARITHMETIC = re.compile(r"^\s+((?:add|sub|mul|fma|mad|div|sqrt|rcp|rsqrt|ex2|tanh)\.[\w.]*f32)", re.MULTILINE)


def inexact(ptx: str) -> set[str]:
    """Operations that are not rounded to nearest, or flush subnormal numbers."""
    found = set(ARITHMETIC.findall(ptx))
    return {each for each in found if ".rn" not in each or "approx" in each or "ftz" in each}


def compiled(*options: str) -> str:
    from services.generation.target.gpu import cuda

    try:
        return cuda.compile_ptx("compute_80", options or cuda.OPTIONS)
    except RuntimeError as error:  # the library itself is not installed
        pytest.skip(f"NVRTC is missing: {error}")


@pytest.mark.slow
def test_every_operation_is_rounded_once_and_none_is_contracted() -> None:
    ptx = compiled()
    assert inexact(ptx) == set()
    assert {"add.rn.f32", "mul.rn.f32", "fma.rn.f32"} <= set(ARITHMETIC.findall(ptx))
    assert not re.search(r"\b(div|sqrt)\.", "\n".join(ARITHMETIC.findall(ptx)))  # these are the kernels' own
    assert {f"float_{storage}_4" for storage in STORAGES} <= set(re.findall(r"\.entry (\w+)", ptx))


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--fmad=true", pytest.param("--use_fast_math", marks=pytest.mark.long)])
def test_options_that_allow_other_bits_are_seen(option: str) -> None:
    assert inexact(compiled("--std=c++17", option))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("UNSUPPORTED_PTX_VERSION", DeviceUnavailable),
        ("INVALID_PTX", DeviceUnavailable),
        ("ECC_UNCORRECTABLE", DeviceLost),
    ],
)
def test_a_driver_that_is_older_than_the_compiler_is_no_failure_of_the_device(
    code: str, kind: type[TargetError], monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.generation.target.gpu import cuda

    done, failed = (getattr(cuda.driver.CUresult, f"CUDA_{name}") for name in ("SUCCESS", f"ERROR_{code}"))
    monkeypatch.setattr(cuda.driver, "cuCtxSetCurrent", lambda _: (done,))
    monkeypatch.setattr(cuda.driver, "cuModuleLoadData", lambda _: (failed, None))
    monkeypatch.setattr(cuda.nvrtc, "nvrtcVersion", lambda: (cuda.nvrtc.nvrtcResult.NVRTC_SUCCESS, 13, 0))
    monkeypatch.setattr(cuda, "kept", lambda *_: b"")
    found = object.__new__(cuda.CudaDevice)
    found._context, found._architecture, found.description = None, "compute_80", "cuda"
    with pytest.raises(kind, match=f"CUDA_ERROR_{code}"):
        found.compile()


def test_compiled_code_is_kept_until_it_is_damaged_or_its_circumstances_change(tmp_path: Path) -> None:
    made = count(1)

    def code(driver: str) -> bytes:
        return kept((driver, "source"), lambda: b"code %d" % next(made), tmp_path)

    assert code("driver 1") == code("driver 1") == b"code 1"
    assert code("driver 2") == b"code 2"
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes().replace(b"code 1", b"code 9"))
    assert (code("driver 1"), code("driver 2")) == (b"code 3", b"code 2")
