"""The target on PoCL has the CPU's bits: families, forms of the cache, trees, chunks, moves, blocks, drafts. Errors."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sampling.race import Row
from services.generation.target.arrays import Float32
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.errors import (
    AdapterUnsupported,
    TargetError,
    UnsupportedArchitecture,
    WeightsInvalid,
)
from services.generation.target.gpu import gpu_target
from services.generation.target.gpu.device import DeviceLost, DeviceUnavailable
from services.generation.target.gpu.gpu_target import SERVED, GpuTarget, load_gpu_target
from services.generation.target.gpu.kernels import Kernels, Lines
from services.generation.target.gpu.layers import whole_lines
from services.generation.target.probe import measure_profile
from services.generation.target.rows import Rows, RowsBuilder
from services.generation.target.target import Target
from services.generation.target.unread import Best
from tests.examples import examples
from tests.fakes.engine_runs import run
from tests.fakes.opencl import opencl
from tests.fakes.rows import tree_rows
from tests.fakes.tiny_families import FAMILIES, draw_vectors
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_model import TOKENS, make_tiny_model
from tests.numerics.arithmetic import assert_same_bits
from tests.unit.generation.engine.test_identity import check_identity, short_battery

pytestmark = pytest.mark.usefixtures("pocl_device")

LAYERS = (0, 1)
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
    "mistral": {"architecture": "mistral", "sliding_window": 40, "hidden": 72, "heads": 6, "kv_heads": 3},
    "qwen2": {"architecture": "qwen2", "tie_word_embeddings": True, "intermediate_size": 101},
    "qwen3": {"architecture": "qwen3", "head_dim": 24},
    "smollm3": FAMILIES["smollm3"],
    "granite": FAMILIES["granite"],
    "gemma2": FAMILIES["gemma2"],
    "gemma3_text": FAMILIES["gemma3"],
}  # fmt: skip


@pytest.fixture(scope="module")
def whole_numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("int8") / "tiny.gguf", storage="q4_1", layers=2)


@pytest.fixture(scope="module")
def gpu(whole_numbers: Path) -> GpuTarget:
    return load_gpu_target(whole_numbers, device="opencl", cache_tokens=40 * 64)


@pytest.fixture(scope="module")
def cpu(whole_numbers: Path) -> CpuTarget:
    return load_target(whole_numbers, cache_tokens=40 * 64)


def test_a_file_that_changes_while_it_is_packed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, honest = make_tiny_gguf(tmp_path / "tiny.gguf", layers=1), GpuTarget._load

    def written(*given: Any) -> None:
        path.touch()
        honest(*given)

    monkeypatch.setattr(GpuTarget, "_load", written)
    with pytest.raises(WeightsInvalid, match="tiny"):
        load_gpu_target(path, device="opencl", cache_tokens=64)


def chunks_and_trees(target: Target, layers: Sequence[int] = LAYERS) -> list[tuple[Float32, Float32]]:
    """Logits and features of two sequences: a prompt in chunks; beside it trees, an accepted path that is moved, and
    tokens after it.
    """
    first, second = list[int](), list[int]()
    target.blocks.extend(first, 200)
    target.blocks.extend(second, 200)
    found = []

    def compute(rows: Rows) -> None:
        out = target.forward(rows, layers)
        found.append((out.logits, out.features))

    for start, end in ((0, 61), (61, 70)):
        rows = RowsBuilder()
        rows.add_chunk(first, start, TOKENS[start:end], True)
        rows.add_tree(second, min(start, 1), TOKENS[:5], [-1, 0, 0, 1, 3])
        compute(rows.build())
    compute(tree_rows(first, 70, [5, 6, 7, 8, 9, 10], [-1, 0, 0, 2, 2, 4]))  # the path 0, 2, 4, 5 is accepted
    slots = [first[at // 64] * 64 + at % 64 for at in range(70, 76)]
    target.move([slots[2], slots[4], slots[5]], [slots[1], slots[2], slots[3]])
    compute(tree_rows(first, 74, TOKENS[:40]))
    target.blocks.release(first)
    target.blocks.release(second)
    return found


def assert_same_passes(found: Target, expected: Target) -> None:
    for each in zip(chunks_and_trees(found), chunks_and_trees(expected), strict=True):
        for one, other in zip(*each, strict=True):
            assert_same_bits(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("family", SERVED)
def test_a_family_has_the_bits_of_the_cpu(family: str, tmp_path: Path) -> None:
    path = draw_vectors(make_tiny_model(tmp_path, **MODELS[family]))
    form = ("float32", "bfloat16", "int8")[SERVED.index(family) % 3]
    options: dict[str, Any] = {"cache_tokens": 20 * 64, "cache_dtype": form}
    assert_same_passes(load_gpu_target(path, device="opencl:0", **options), load_target(path, **options))


def test_a_file_that_is_replaced_between_opening_and_hashing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_tiny_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(gpu_target, "base_cid", lambda _: path.write_bytes(path.read_bytes()))
    with pytest.raises(WeightsInvalid, match=r"tiny\.gguf: changed"):
        load_gpu_target(path, device="opencl")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("storage", "architecture", "arithmetic"),
    [("q8_0", "llama", "float32"), ("q4_k", "qwen2", "int8"), ("q6_k", "qwen3", "int8")],
)
def test_a_storage_has_the_bits_of_the_cpu(storage: str, architecture: str, arithmetic: str, tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "tiny.gguf", storage=storage, architecture=architecture, tied=storage == "q8_0")
    options: dict[str, Any] = {"cache_tokens": 20 * 64, "arithmetic": arithmetic, "cache_dtype": "bfloat16"}
    assert_same_passes(load_gpu_target(path, device="opencl", **options), load_target(path, **options))


@pytest.mark.long
@pytest.mark.parametrize("form", ["int8", "float32"])
def test_a_published_model_has_the_bits_of_the_cpu(form: str, smollm2: Path) -> None:
    options: dict[str, Any] = {"cache_tokens": 20 * 64, "cache_dtype": form}
    assert_same_passes(load_gpu_target(smollm2, device="opencl", **options), load_target(smollm2, **options))


@pytest.mark.slow
def test_the_profile_is_that_of_the_cpu(gpu: GpuTarget, cpu: CpuTarget) -> None:
    found, expected = measure_profile(gpu), measure_profile(cpu)
    assert found.passed
    assert (found.cid, found.document) == (expected.cid, expected.document)


def test_what_drafters_ask_for_has_the_bits_of_the_cpu(gpu: GpuTarget, cpu: CpuTarget) -> None:
    tokens = np.array([5, 0, 383], np.int64)
    assert_same_bits(gpu.embed(tokens), cpu.embed(tokens))
    states = np.random.default_rng(0).standard_normal((70, 256)).astype(np.float32)
    assert_same_bits(gpu.unembed(states), np.ascontiguousarray(cpu.unembed(states)))


def test_a_block_that_was_read_is_worth_the_same_in_another_target(gpu: GpuTarget, whole_numbers: Path) -> None:
    other, table = load_gpu_target(whole_numbers, device="opencl", cache_tokens=2 * 64), list[int]()
    gpu.blocks.extend(table, 70)
    expected = gpu.forward(tree_rows(table, 0, TOKENS[:66])).logits[64:].copy()
    other.fill_block(1, gpu.block_content(table[0]))
    assert_same_bits(other.forward(tree_rows([1, 0], 64, TOKENS[64:66], [-1, 0])).logits, expected)
    gpu.blocks.release(table)


@pytest.mark.parametrize("size", [1, 1023, 1025, 5000])
@pytest.mark.parametrize("lanes", [1, 64])
def test_the_best_of_a_row_are_those_that_the_cpu_finds(size: int, lanes: int, gpu: GpuTarget) -> None:
    kernels, random = Kernels(gpu.kernels.device, lanes), np.random.default_rng(size)
    rows = random.integers(-3, 3, (9, size)).astype(np.float32)  # with many equal values, and -0 in some
    rows[1:3] *= random.choice(np.array([-0.0, 0.0], np.float32), (2, size))
    rows[3:5] = random.standard_normal((2, size))
    rows[5:8, size // 2] = np.nan, np.inf, -np.inf
    rows[8] = -rows[8] * np.float32(1e-44)
    lines = Lines(kernels.upload(whole_lines(rows, size + 7)), size + 7)
    for found, row in zip(kernels.best(lines, len(rows), size), rows, strict=True):
        if np.isfinite(row).all():
            expected = Row.of(row)
            assert str(found) == str(Best(expected.token, expected.best, expected.second))
        else:
            assert found is None


def test_logits_are_read_where_sampling_asks_for_them(gpu: GpuTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy tokens and their digest need the best two of a row; temperatures, penalties and log-probabilities all."""
    device, wide = gpu.kernels.device, list[int]()
    read = device.read

    def counted(buffer: Any, array: np.ndarray[Any, Any], offset: int = 0) -> None:
        wide.append(array.size >= gpu.config.vocab_size)
        read(buffer, array, offset)

    monkeypatch.setattr(device, "read", counted)
    for options, count in (({}, 0), ({"temperature": 1.0}, 4), ({"frequency_penalty": 1.0}, 4), ({"logprobs": 1}, 4)):
        wide.clear()
        run(gpu, [EngineRequest("", (1, 2, 3), SamplingParams(max_tokens=4, **options))])
        assert sum(wide) == count


def test_logits_of_an_earlier_pass_are_gone(gpu: GpuTarget) -> None:
    earlier, later = (gpu.forward(tree_rows([0], 0, [1])) for _ in range(2))
    assert len(later.logits) == 1
    with pytest.raises(ValueError, match="earlier pass"):
        _ = earlier.logits


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
@settings(short_battery, max_examples=examples(8))  # a pass takes some hundred times as long as on the CPU
def test_no_schedule_and_no_drafter_changes_a_token_of_the_cpu(gpu: GpuTarget, cpu: CpuTarget, seed: int) -> None:
    check_identity(gpu, cpu, seed)


def test_the_probe_reports_rows_that_differ(gpu: GpuTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    linear = gpu._passes.linear
    monkeypatch.setattr(gpu._passes, "linear", lambda m, x, y, rows: linear(m, x, y, min(rows, 32)))
    report = gpu.probe_kernels()
    assert 11 * len(report.failures) == report.compared > 0


def test_a_device_of_other_bits_and_no_device_are_refused(whole_numbers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.generation.target.gpu.opencl.open_device", lambda _: opencl("-cl-denorms-are-zero"))
    with pytest.raises(DeviceUnavailable, match=r"expected [0-9a-f]{8}"):
        load_gpu_target(whole_numbers, device="opencl")
    monkeypatch.undo()
    monkeypatch.setattr("services.generation.target.gpu.opencl.devices", list)
    with pytest.raises(DeviceUnavailable, match="none"):
        load_gpu_target(whole_numbers, device="opencl")


@pytest.mark.parametrize("family", ["gemma4", "phi3", "lfm2", "qwen3_5", "qwen3_next"])
def test_another_family_is_refused_by_name(family: str, tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path, **FAMILIES[family])
    with pytest.raises(UnsupportedArchitecture, match=family):
        load_gpu_target(path, device="opencl", cache_tokens=64)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"adapters": {"polite": Path("nowhere")}}, AdapterUnsupported, "polite"),
        ({"device": "opencl:999"}, DeviceUnavailable, "opencl:999"),
        ({"device": "cuda"}, DeviceUnavailable, "cuda"),
        ({"cache_tokens": 1 << 34}, DeviceUnavailable, "MiB"),
    ],
    ids=["adapters", "index", "no CUDA", "memory"],
)
def test_an_error_names_its_cause(
    options: dict[str, Any], error: type[TargetError], named: str, whole_numbers: Path
) -> None:
    with pytest.raises(error, match=named):
        load_gpu_target(whole_numbers, **{"device": "opencl", **options})


@pytest.mark.parametrize(("device", "package"), [("opencl", "pyopencl"), ("cuda", "cuda.bindings")])
def test_a_missing_extra_is_named(
    device: str, package: str, whole_numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, f"services.generation.target.gpu.{device}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DeviceUnavailable, match="the extra gpu"):
        load_gpu_target(whole_numbers, device=device)


def test_a_full_memory_is_named(gpu: GpuTarget) -> None:
    with pytest.raises(DeviceUnavailable, match="no room"):
        gpu.kernels.device.buffer(1 << 50)


def test_a_device_that_is_lost_returns_nothing(whole_numbers: Path) -> None:
    target = load_gpu_target(whole_numbers, device="opencl", cache_tokens=128)
    rows = tree_rows([0], 0, [1])

    def lost(*_: object) -> None:
        raise DeviceLost("the device is gone")

    target.kernels.device.read = lost  # type: ignore[method-assign]
    with pytest.raises(DeviceLost):
        target.forward(rows)
