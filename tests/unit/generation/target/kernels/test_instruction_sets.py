"""Every instruction set gives the same bits; compiled code is kept, and compiled once."""

import os
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from services.generation.target.cpu import CpuTarget
from services.generation.target.errors import TargetError
from services.generation.target.files.stored_tensor import LAYOUTS
from services.generation.target.kernels import compilation, machine
from services.generation.target.kernels.attention.cache_dtypes import FORMS
from services.generation.target.kernels.linear import integer
from services.generation.target.kernels.machine import MACHINES, RESTRICTION, _supported, this_machine
from services.generation.target.kernels.storages import STORAGES
from services.generation.target.program.team import team
from tests.fakes.tiny_families import FAMILIES, draw_vectors
from tests.fakes.tiny_model import logits_of, make_tiny_model, target_of
from tests.forked import Forked
from tests.numerics.arithmetic import assert_same_bits
from tests.numerics.digest import logits_digest
from tests.numerics.emulator import EmulatedPasses, Emulator, _arrays, missing
from tests.numerics.kernels import KernelArithmetic
from tests.numerics.model import by_kernels, check_model
from tests.numerics.vectors import SECTIONS, check, read

FEW = ("float32", "q4_1", "q6_k")
"""One storage of each layout: plain numbers, blocks of 32, blocks of 256. Compiling the others takes minutes."""
STORED = [pytest.param(FEW, id="few"), pytest.param(tuple(LAYOUTS), id="all", marks=pytest.mark.long)]
TWINS = {"amx": "avx512", "avx512vnni": "avx512", "avxvnni": "avx2", "neondot": "neon", "neoni8mm": "neon"}
"""Instruction sets that multiply bytes otherwise than another one: all else is the same code."""


def _same_code(name: str) -> bool:
    """Whether other tests show all of it but products of whole numbers: those on its twin or on this machine."""
    return name in TWINS or TWINS.get(this_machine().name) == name


@pytest.mark.slow
@pytest.mark.parametrize("storages", STORED)
@pytest.mark.parametrize("name", [*MACHINES])
def test_vectors_and_a_whole_model_on_one_instruction_set(tmp_path: Path, name: str, storages: tuple[str, ...]) -> None:
    if name not in _supported():
        pytest.skip(f"this CPU has no {name}")
    if name == this_machine().name:
        pytest.skip(f"{name} is what the other tests run on")
    models: tuple[Path, ...] = ()
    # Linear layers of one element at a time take longest to compile: some seconds a storage, and those of q6_k twelve.
    compiled = ("float32", "q4_k") if name == "scalar" and storages == FEW else storages
    if storages != FEW or not _same_code(name):
        models = (
            make_tiny_model(tmp_path / "attention", architecture="qwen3", hidden=96, head_dim=24),
            make_tiny_model(tmp_path / "convolutions", **FAMILIES["lfm2"]),
            make_tiny_model(tmp_path / "states", **FAMILIES["qwen3_5_moe"]),
            make_tiny_model(tmp_path / "mamba", **FAMILIES["granite_hybrid"]),
        )
    restricted = os.environ | {RESTRICTION: name}
    with Forked("tests.numerics.digest", ",".join(compiled), *map(str, models), environment=restricted) as process:
        found, wrong = process.communicate()
        assert process.wait() == 0, wrong
    assert found.split() == [name, *map(logits_digest, models)]


@pytest.mark.parametrize("permitted", [True, False])
def test_matrices_are_for_processes_that_linux_permits_them(permitted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    features = {feature: True for each in MACHINES.values() for feature in each.needs}
    monkeypatch.setattr(machine.llvm, "get_host_cpu_features", lambda: features)
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(machine, "_request_matrices", lambda: permitted)
    assert _supported()[0] == ("amx" if permitted else "avx512vnni")


@dataclass(frozen=True, slots=True)
class Emulated:
    emulator: Emulator
    storages: tuple[str, ...]  # that it has layers for
    forms: tuple[str, ...]  # of the cache

    def check(self, section: str, turns: int = 1, members: int = 1) -> None:
        check(section, KernelArithmetic(self.emulator.run, members=members), turns, self.storages, self.forms)


@pytest.mark.slow
def test_a_module_is_compiled_for_it() -> None:
    code = compilation.object_code(MACHINES["neon"], "rows")
    assert code[:4] == b"\x7fELF"
    assert int.from_bytes(code[18:20], "little") == 183  # EM_AARCH64
    assert all(name.encode() in code for name in compilation.exports("rows"))


@pytest.fixture(scope="module", params=STORED)
def storages(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def emulated(storages: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    """All kernels, including those for the model in the vectors."""
    written = {tensor["storage"] for tensor in read("model")["weights"].values()}
    names = [storage for storage in STORAGES if storage in written.union(storages)]
    linear = [f"{kind}_{storage}" for storage in names for kind in ("linear", "embed")]
    folder = tmp_path_factory.mktemp("aarch64")
    return _emulated(folder, "neon", storages, tuple(FORMS), ["rows", *linear])


@pytest.fixture(scope="module", params=[name for name, twin in TWINS.items() if twin == "neon"])
def twin(
    request: pytest.FixtureRequest, storages: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Emulated:
    folder = tmp_path_factory.mktemp("aarch64")
    return _emulated(folder, request.param, storages, ("int8",), [])


def _emulated(
    folder: Path, name: str, storages: tuple[str, ...], forms: tuple[str, ...], modules: list[str]
) -> Emulated:
    if missing():
        pytest.skip(f"not installed: {missing()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer, "_most_rows", lambda machine: 3)  # higher tiles take long to compile
        modules += [f"cache_{form}" for form in forms]
        modules += [f"integer_{storage}" for storage in STORAGES if STORAGES[storage].quantised and storage in storages]
        return Emulated(Emulator.build(folder, modules, MACHINES[name]), storages, forms)


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
def test_kernels_give_the_bits_in_the_files(emulated: Emulated, section: str) -> None:
    for turns in (1, 3, 29):
        emulated.check(section, turns)
    emulated.check(section, members=3)


@pytest.mark.slow
def test_its_twin_gives_the_bits_of_products_in_the_file(twin: Emulated) -> None:
    for turns in (1, 3, 29):
        twin.check("linear_int8", turns)
    twin.check("linear_int8", members=3)
    twin.check("attention")


@pytest.mark.slow
def test_a_whole_model_gives_the_logits_in_the_file(emulated: Emulated) -> None:
    def emulate(target: CpuTarget) -> None:
        target._passes = EmulatedPasses(target, emulated.emulator)

    check_model(read("model"), partial(by_kernels, prepare=emulate))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5_moe", "granite_hybrid"])
def test_states_are_the_same_bits(family: str, emulated: Emulated, tmp_path: Path) -> None:
    directory = draw_vectors(make_tiny_model(tmp_path, **FAMILIES[family]))
    target, expected = target_of(directory), logits_of(target_of(directory))
    target._passes = EmulatedPasses(target, emulated.emulator)  # type: ignore[assignment]
    assert_same_bits(logits_of(target, [3, 20, 1, 66]), expected)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the code of the modules `rows`, and `embed_q4_1`, which takes least to compile."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("compiled")
        patch.setenv("KOLM_KERNEL_CACHE", str(folder))
        compilation.compile_ahead(["rows", "embed_q4_1"])
    return folder


def test_an_emulated_pass_leaves_the_words_of_this_process_s_team_alone(tmp_path: Path) -> None:
    found = list(_arrays(target_of(make_tiny_model(tmp_path)), set()))
    assert found
    assert not [array for array in found if array is team()._pool]


def test_whether_an_earlier_start_has_compiled_them(
    compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOLM_KERNEL_CACHE", str(tmp_path))
    assert not compilation.kernels_are_compiled()
    monkeypatch.setenv("KOLM_KERNEL_CACHE", str(compiled))
    assert compilation.kernels_are_compiled()
    monkeypatch.setattr(compilation, "version", lambda: "another")
    assert not compilation.kernels_are_compiled()


@pytest.mark.parametrize("change", ["a bit of the code", "the end", "another module's file", "no digest"])
def test_object_code_that_is_not_what_was_compiled_is_compiled_again(
    compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setenv("KOLM_KERNEL_CACHE", str(tmp_path))
    path = Path(shutil.copy(*compiled.glob("embed_q4_1-*.o"), tmp_path))
    good = path.read_bytes()
    if change == "a bit of the code":
        path.write_bytes(good[:2000] + bytes([good[2000] ^ 1]) + good[2001:])
    elif change == "the end":
        path.write_bytes(good[:-100])
    elif change == "no digest":
        path.write_bytes(good.split(b"\n", 1)[1])
    else:
        other = path.with_name(path.name.replace("embed_q4_1-", "embed_q4_0-"))
        path.rename(other)
        path = other
    assert not compilation._cached(path)
    compilation.compile_ahead([path.name.partition("-")[0]])
    assert path.read_bytes() != good if change == "another module's file" else path.read_bytes() == good
    assert compilation._cached(path)


def test_a_folder_that_was_named_and_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").touch()
    monkeypatch.setenv("KOLM_KERNEL_CACHE", str(tmp_path / "taken"))
    with pytest.raises(TargetError):
        compilation.compile_ahead(["rows"])
