"""Probing of the arithmetic before it is trusted, and models that fail it."""

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.generation.state_folder import one_at_a_time
from services.generation.target.blocks import BLOCK
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.errors import CacheFull
from services.generation.target.kept_results import code_version
from services.generation.target.kernels.records import PASS
from services.generation.target.probe import KeptProbes, ProbeReport, measure_profile, probe
from services.generation.target.program.kernel_probe import KernelReport
from services.generation.target.program.team import Team
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput
from tests.fakes.rows import tree_rows
from tests.fakes.tampered_targets import WidthDependentTarget
from tests.fakes.tiny_families import FAMILIES
from tests.fakes.tiny_model import make_tiny_model

KERNELS = CpuTarget.probe_kernels


@pytest.fixture(autouse=True)
def _kernels_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a target are probed once for all tests that are about something else."""
    monkeypatch.setattr(CpuTarget, "probe_kernels", _probed)


@cache
def _probed(target: CpuTarget) -> KernelReport:
    return KERNELS(target)


@pytest.mark.slow
def test_the_cpu_target_passes_and_leaves_the_cache_free(shared_target: CpuTarget) -> None:
    report = probe(shared_target)
    assert report.passed, report.failures
    assert report.compared > 30
    assert shared_target.blocks.used == 0


def test_a_target_whose_bits_depend_on_the_width_fails(target: CpuTarget) -> None:
    tampered = WidthDependentTarget(target)
    tampered.deviating = True
    report = probe(tampered)
    assert not report.passed
    assert "logits differ" in report.failures[0]
    assert target.blocks.used == 0


def test_the_fingerprint_is_of_rows_computed_alone_even_if_wide_passes_differ(target: CpuTarget) -> None:
    tampered = WidthDependentTarget(target)
    tampered.deviating = True
    honest, deviating, alone = probe(target), probe(tampered), hashlib.sha256()
    rng, table = random.Random(0), list[int]()
    target.blocks.extend(table, 3 * BLOCK)
    for at in range(min(2 * BLOCK + 12, target.config.context_length - 17)):
        alone.update(target.forward(tree_rows(table, at, [rng.randrange(target.config.vocab_size)])).logits.tobytes())
    target.blocks.release(table)
    assert honest.fingerprint == deviating.fingerprint == f"sha256:{alone.hexdigest()}"


def test_one_layer_of_each_kind_is_probed(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    made = make_tiny_model(tmp_path, **FAMILIES["gemma3"] | {"layers": 6, "layer_types": 3 * kinds})
    target = load_target(made, cache_tokens=40 * 64)
    abridged = target.abridged()
    assert [layer.spec.prefix for layer in abridged._parts.layers] == ["model.layers.0.", "model.layers.1."]
    assert [keys.ctypes.data for keys in abridged._parts.cache.keys] == [
        keys.ctypes.data for keys in target._parts.cache.keys[:2]
    ]


@pytest.mark.slow
def test_a_layer_that_reads_another_s_keys_is_probed_with_that(tmp_path: Path) -> None:
    members = FAMILIES["gemma4, shared keys and inputs of layers"]
    made = make_tiny_model(tmp_path, **members | {"layers": 8, "layer_types": 2 * members["layer_types"]})
    target = load_target(made, cache_tokens=40 * 64)
    specs = {number: layer.spec for number, layer in enumerate(target._parts.layers)}
    probed = {layer.spec.prefix for layer in target.abridged()._parts.layers}
    readers = {spec.source for spec in specs.values() if spec.source is not None and spec.prefix in probed}
    assert readers
    assert len(probed) < len(specs)
    assert all(specs[source].prefix in probed for source in readers)


@pytest.mark.slow
def test_a_fault_beyond_the_probed_layers_is_found_in_the_whole_model(
    target: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = target.forward

    def faulty(rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        computed = whole(rows, feature_layers)
        computed.logits[:] += np.float32(len(rows) > 30)
        return computed

    honest = target.abridged()
    monkeypatch.setattr(target, "forward", faulty)
    monkeypatch.setattr(target, "abridged", lambda: honest)
    widths = {failure.split(" rows")[0].split(" ")[-1] for failure in probe(target).failures}
    assert widths == {"1", "2", "3", "5", "8", "16"}


@pytest.mark.slow
def test_a_target_that_does_not_move_slots_fails(target: CpuTarget) -> None:
    class Forgetful(WidthDependentTarget):
        def move(self, sources: list[int], targets: list[int]) -> None:
            pass

    report = probe(Forgetful(target))
    assert [failure.split(" at ")[0] for failure in report.failures] == ["the row after a moved path"] * 2


@pytest.mark.slow
def test_a_profile_is_the_same_every_time_and_another_for_another_base(target: CpuTarget, tmp_path: Path) -> None:
    first, second = measure_profile(target), measure_profile(target)
    other = measure_profile(load_target(make_tiny_model(tmp_path, seed=1)))
    assert first.passed
    assert first.cid == second.cid
    assert first.cid != other.cid
    differing = [key for key, value in first.document.items() if other.document[key] != value]
    assert differing == ["fingerprint"]


@pytest.mark.slow
def test_the_second_start_takes_what_the_first_has_found(
    target: CpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptProbes(tmp_path)
    first = measure_profile(target, kept)
    monkeypatch.setattr("services.generation.target.probe.probe", lambda target: pytest.fail("probed again"))
    assert measure_profile(target, kept) == first


def test_other_code_is_probed_again(target: CpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptProbes(tmp_path)
    kept.keep(target, ProbeReport(3, (), "sha256:00"))
    assert kept.find(target) is not None
    monkeypatch.setattr("services.generation.target.kept_results.code_version", lambda: "another")
    assert kept.find(target) is None


def test_a_configuration_that_is_read_in_another_way_is_probed_again(target: CpuTarget, tmp_path: Path) -> None:
    kept, other = KeptProbes(tmp_path), copy(target)
    kept.keep(target, ProbeReport(3, (), "sha256:00"))
    other.config = replace(target.config, windows=(9, 0))  # another version of transformers, with other defaults
    assert kept.find(other) is None


def test_other_libraries_are_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    own = code_version()
    monkeypatch.setattr(np, "__version__", "0.0.0")
    assert code_version.__wrapped__() != own


def test_a_probe_with_a_thread_for_each_cpu_holds_for_one_thread_alone(
    target: CpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.generation.target.probe.cpus", lambda: 3)
    kept, (one, two, three) = KeptProbes(tmp_path), (copy(target) for _ in range(3))
    one.threads, two.threads, three.threads = 1, 2, 3
    kept.keep(three, ProbeReport(3, (), "sha256:00"))
    assert kept.find(one) == kept.find(three) == ProbeReport(3, (), "sha256:00")
    assert kept.find(two) is None
    kept = KeptProbes(tmp_path / "another")
    kept.keep(one, ProbeReport(3, (), "sha256:00"))
    assert kept.find(three) is None


@pytest.mark.slow
def test_what_failed_and_what_is_damaged_is_not_kept(target: CpuTarget, tmp_path: Path) -> None:
    kept = KeptProbes(tmp_path)
    tampered = WidthDependentTarget(target)
    tampered.deviating = True
    assert not measure_profile(tampered, kept).passed
    assert not list(tmp_path.glob("*.json"))
    kept.keep(target, ProbeReport(3, (), "sha256:00"))
    next(tmp_path.glob("*.json")).write_bytes(b'{"compared": ')
    assert kept.find(target) is None


@pytest.mark.parametrize("change", [{"compared": 4}, {"fingerprint": "sha256:01"}, {"digest": ""}])
def test_what_was_changed_is_not_believed(target: CpuTarget, tmp_path: Path, change: dict[str, object]) -> None:
    kept = KeptProbes(tmp_path)
    kept.keep(target, ProbeReport(3, (), "sha256:00"))
    assert kept.find(target) == ProbeReport(3, (), "sha256:00")
    (path,) = tmp_path.glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert kept.find(target) is None


def test_a_result_under_another_targets_name_is_not_believed(
    target: CpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptProbes(tmp_path)
    with monkeypatch.context() as other:
        other.setattr("services.generation.target.kept_results.code_version", lambda: "another")
        kept.keep(target, ProbeReport(3, (), "sha256:00"))
    (path,) = tmp_path.glob("*.json")
    path.rename(kept._results._path(target, target.threads))
    assert kept.find(target) is None


@pytest.fixture(scope="module")
def shared_target(model: Path) -> CpuTarget:
    """The tiny model, whose passes are shared by two threads."""
    return load_target(model, cache_tokens=40 * 64, threads=2)


@pytest.mark.slow
def test_kernels_pass_at_every_size_and_the_cache_is_given_back(shared_target: CpuTarget) -> None:
    report = _probed(shared_target)
    assert not report.failures
    assert report.compared > 1000
    assert shared_target.blocks.used == 0


def test_kernels_are_not_probed_in_a_full_cache(model: Path) -> None:
    target = load_target(model, cache_tokens=2 * BLOCK)
    target.blocks.extend([], BLOCK * target.blocks.free)
    with pytest.raises(CacheFull):
        KERNELS(target)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [17, pytest.param(256, marks=pytest.mark.long)])
def test_a_kernel_that_is_wrong_for_one_number_of_rows_is_found(
    target: CpuTarget, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    honest = Team.run

    def tampered(self: Team, words: Any, threads: int, *, wait: bool = False) -> None:
        if words[PASS.index("rows")] == rows:
            words[PASS.index("rows")] -= 1
        honest(self, words, threads, wait=wait)

    monkeypatch.setattr(Team, "run", tampered)
    report = KERNELS(target)
    assert report.failures
    assert all(f" {rows} rows" in failure for failure in report.failures)


_WORK = """
import sys, time
from pathlib import Path
from services.generation.state_folder import one_at_a_time
folder = Path(sys.argv[1])
print("asking", flush=True)
with one_at_a_time(folder):
    (folder / "inside").touch(exist_ok=False)
    print("inside", flush=True)
    sys.stdin.read()
    (folder / "inside").unlink()
"""


def _process(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _WORK, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "asking\n"
    return process


def test_the_second_waits_for_the_first_even_if_that_is_killed(tmp_path: Path) -> None:
    with _process(tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "inside\n"
        with _process(tmp_path) as second:
            assert second.poll() is None
            (tmp_path / "inside").unlink()
            first.kill()
            out, _ = second.communicate("")
            assert (out, second.returncode) == ("inside\n", 0)


def test_a_folder_that_cannot_be_written_to_blocks_no_process(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with one_at_a_time(tmp_path / "file" / "below"):
        pass
