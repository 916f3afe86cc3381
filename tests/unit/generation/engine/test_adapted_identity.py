"""The contract with adapters: whatever is mixed in a batch, the tokens and the stream digest of a request are those of
the request decoded alone, one row at a time, with speculation off, on an engine that has only its own adapter.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.engine.request import EngineRequest, InvalidRequest, SamplingParams
from services.generation.target.cpu import CpuTarget, load_target
from tests.fakes.engine_runs import run
from tests.fakes.tiny_head import make_tiny_adapter
from tests.unit.generation.engine.test_identity import (
    alone,
    check_unchanged,
    drafters_of,
    requests_of,
    short_battery,
    signature,
)

ADAPTERS = {"small": {"rank": 3, "modules": ("q_proj", "up_proj")}, "wide": {"rank": 16}}


@pytest.fixture(scope="module")
def directories(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: make_tiny_adapter(folder / name, tiny_model, seed=seed, **kind)  # type: ignore[arg-type]
        for seed, (name, kind) in enumerate(ADAPTERS.items())
    }


@pytest.fixture(scope="module")
def mixed(tiny_model: Path, directories: dict[str, Path]) -> CpuTarget:
    return load_target(tiny_model, cache_tokens=40 * 64, adapters=directories)


@pytest.fixture(scope="module")
def cramped(tiny_model: Path, directories: dict[str, Path]) -> CpuTarget:
    """The same with a cache of four blocks: sequences preempt each other."""
    return load_target(tiny_model, cache_tokens=4 * 64, adapters=directories)


@pytest.fixture(scope="module")
def lone(tiny_model: Path, directories: dict[str, Path]) -> dict[str | None, CpuTarget]:
    """By the identifier that a request names: a target that has that adapter only; for None, one that has none."""
    each = [load_target(tiny_model, cache_tokens=20 * 64, adapters={n: path}) for n, path in directories.items()]
    return {t.adapters[0].cid: t for t in each} | {None: load_target(tiny_model, cache_tokens=20 * 64)}


def check_identity(target: CpuTarget, lone: dict[str | None, CpuTarget], seed: int) -> None:
    rng = random.Random(seed)
    adapters = [None, *(adapter.cid for adapter in target.adapters)]
    requests = [replace(each, adapter=rng.choice(adapters)) for each in requests_of(rng, rng.randrange(2, 6))]
    expected = {request.key: alone(lone[request.adapter], request) for request in requests}
    truth = {key: tokens for key, (tokens, *_) in expected.items()}
    check_unchanged(target, requests, expected, drafters_of(target, seed, truth), rng)


@given(seed=st.integers(0, 2**32))
@short_battery
def test_no_neighbour_s_adapter_changes_a_token(mixed: CpuTarget, lone: dict[str | None, CpuTarget], seed: int) -> None:
    check_identity(mixed, lone, seed)


@given(seed=st.integers(0, 2**32))
@short_battery
def test_preemption_keeps_the_adapter(cramped: CpuTarget, lone: dict[str | None, CpuTarget], seed: int) -> None:
    check_identity(cramped, lone, seed)


def test_one_prompt_under_each_adapter_gives_texts_of_its_own(
    mixed: CpuTarget, lone: dict[str | None, CpuTarget]
) -> None:
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    adapters = [None, *(adapter.cid for adapter in mixed.adapters)]
    requests = [EngineRequest(f"r{n}", (5, 9, 300), sampling, adapter=cid) for n, cid in enumerate(adapters)]
    collected = run(mixed, requests)
    outputs = [signature(collected, request) for request in requests]
    assert len({tokens for tokens, *_ in outputs}) == 3
    assert outputs == [alone(lone[request.adapter], request) for request in requests]


def test_a_prefix_is_shared_under_the_same_adapter_only(mixed: CpuTarget, lone: dict[str | None, CpuTarget]) -> None:
    sampling, prompt = SamplingParams(max_tokens=20, ignore_eos=True), tuple((3 * i * i) % 384 for i in range(140))
    adapters = [None, *(adapter.cid for adapter in mixed.adapters)]
    requests = [EngineRequest(f"r{n}", prompt, sampling, adapter=cid) for n, cid in enumerate([*adapters, *adapters])]
    collected = run(mixed, requests, arrivals=[60 * n for n in range(len(requests))])
    for number, request in enumerate(requests):
        assert signature(collected, request) == alone(lone[request.adapter], request)
        reused = collected.outcomes[request.key].metrics.cached_prompt_tokens
        assert reused == (0 if number < len(adapters) else 128)


def test_an_adapter_that_is_not_loaded_is_refused(mixed: CpuTarget) -> None:
    request = EngineRequest("r", (1,), SamplingParams(), adapter="cidv1:sha256:" + "0" * 64)
    with pytest.raises(InvalidRequest):
        run(mixed, [request])
    assert mixed.blocks.used == 0
