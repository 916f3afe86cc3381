"""An engine over a model whose other ranks are processes: tokens, digests and profile of one process."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from gguf.constants import GGMLQuantizationType

from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.ranks.shared_loading import SharedLoading, watched
from services.generation.settings import GenerationSettings
from services.generation.target.blocks import BLOCK
from services.generation.target.cpu import CpuTarget
from services.generation.target.errors import RankLost
from services.generation.target.loading import load_target
from services.generation.target.parallel.leader import SharedTarget
from services.generation.target.probing.probe import probe
from tests.fakes.converted_gguf import convert
from tests.fakes.engine_runs import run
from tests.fakes.tiny_families import FAMILIES
from tests.fakes.tiny_model import make_tiny_model
from tests.unit.generation.engine.test_identity import check_identity, signature

TOKENS = 40 * BLOCK


@dataclass(frozen=True)
class Shared:
    target: SharedTarget
    plain: CpuTarget
    processes: list[int]


@contextmanager
def shared(model: Path, ranks: int) -> Iterator[Shared]:
    loading = SharedLoading(GenerationSettings(model=model, tensor_parallel=ranks, threads=1), None)
    try:
        target = loading(model, cache_tokens=TOKENS)
        plain = load_target(model, cache_tokens=TOKENS, threads=1)
        assert loading.workers is not None
        assert isinstance(plain, CpuTarget)
        yield Shared(target, plain, loading.workers.ids)
    finally:
        loading.close()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A Llama in float32 on two ranks."""
    with shared(make_tiny_model(tmp_path_factory.mktemp("llama")), 2) as found:
        yield found


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """Experts in 8 bits on four ranks, of which two hold no head."""
    folder = tmp_path_factory.mktemp("experts")
    model = make_tiny_model(folder / "model", **FAMILIES["mixtral"])
    with shared(convert(model, folder / "m.gguf", GGMLQuantizationType.Q8_0), 4) as found:
        yield found


@pytest.mark.parametrize("ranks", ["two", "four"])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_method_and_no_schedule_changes_a_token(ranks: str, seed: int, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(ranks)
    check_identity(found.target, found.plain, seed)


def test_a_prefix_that_was_computed_before_is_read_on_all_ranks(two: Shared) -> None:
    prompt = tuple(range(3 * BLOCK + 5))
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    requests = [EngineRequest(name, (*prompt, after), sampling) for name, after in (("first", 1), ("second", 2))]
    found, plain = (run(target, requests, arrivals=[0, 20]) for target in (two.target, two.plain))
    assert [signature(found, each) for each in requests] == [signature(plain, each) for each in requests]
    assert found.outcomes["second", 0].metrics.cached_prompt_tokens >= 3 * BLOCK


def test_the_probe_finds_the_bits_of_one_process_on_every_rank(two: Shared) -> None:
    found, plain = probe(two.target), probe(two.plain)
    assert found.passed
    assert found.fingerprint == plain.fingerprint
    assert found.compared > plain.compared
    assert two.target.numerics == two.plain.numerics


def test_a_rank_that_is_killed_ends_the_model_and_is_told_of(four: Shared) -> None:
    lost: queue.Queue[RankLost] = queue.Queue()
    request = EngineRequest("r", (1, 2, 3), SamplingParams(max_tokens=2, ignore_eos=True))
    run(four.target, [request])
    os.kill(four.processes[1], signal.SIGKILL)
    with pytest.raises(RankLost, match="has ended or does not answer"):
        run(four.target, [request])
    with pytest.raises(RankLost, match="has ended or does not answer"):
        four.target.ask(0.0)
    with watched(four.target, lost.put):
        assert "has ended or does not answer" in str(lost.get(timeout=60))
