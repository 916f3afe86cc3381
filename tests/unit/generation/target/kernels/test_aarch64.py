"""Kernels for AArch64 give the bits in the files: what is compiled for it runs in an emulator."""

from __future__ import annotations

from functools import partial

import pytest

from services.generation.target.cpu import CpuTarget
from services.generation.target.kernels import compilation
from services.generation.target.kernels.linear import integer
from services.generation.target.kernels.linear.widening import BITS
from services.generation.target.kernels.machine import MACHINES
from services.generation.target.kernels.storages import STORAGES
from tests.numerics.emulated_passes import EmulatedPasses
from tests.numerics.emulator import Emulator, missing
from tests.numerics.kernels import KernelArithmetic
from tests.numerics.model import by_kernels, check_model
from tests.numerics.vectors import SECTIONS, check, read

MODULES = [
    "rows", "cache_float32", "cache_bfloat16", *(f"linear_{storage}" for storage in STORAGES),
    *(f"integer_{storage}" for storage in BITS),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("module", ["rows", "cache_float32", "linear_float32", "linear_q4_1", "linear_mxfp4"])
def test_modules_are_compiled_for_it(module: str) -> None:
    code = compilation.object_code(MACHINES["neon"], module)
    assert code[:4] == b"\x7fELF"
    assert int.from_bytes(code[18:20], "little") == 183  # EM_AARCH64
    assert all(name.encode() in code for name in compilation.exports(module))


@pytest.fixture(scope="module", params=["neon", "neondot"])
def emulator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    if missing():
        pytest.skip(f"not installed: {missing()}")
    with pytest.MonkeyPatch.context() as patch:
        # Of the tiles of products of bytes, which take long to compile, those that the files' rows and their turns run.
        patch.setattr(integer, "_tiles", lambda machine: (2, 6, 8))
        return Emulator.build(tmp_path_factory.mktemp("aarch64"), MODULES, MACHINES[request.param])


@pytest.mark.slow
@pytest.mark.parametrize("turns", [1, 3, 29])
@pytest.mark.parametrize("section", SECTIONS)
def test_kernels_give_the_bits_in_the_files(emulator: Emulator, section: str, turns: int) -> None:
    check(section, KernelArithmetic(emulator.run), turns)


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
def test_a_team_gives_the_bits_in_the_files(emulator: Emulator, section: str) -> None:
    check(section, KernelArithmetic(emulator.run, members=3))


@pytest.mark.slow
def test_a_whole_model_gives_the_logits_in_the_file(emulator: Emulator) -> None:
    def emulate(target: CpuTarget) -> None:
        target._passes = EmulatedPasses(target, emulator)

    check_model(read("model"), partial(by_kernels, prepare=emulate))
