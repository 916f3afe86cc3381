"""Rows of one pass with different adapters, or none: each has the bits it has alone, only its own being loaded."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.generation.target.arrays import Float32
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.probe import measure_profile, probe
from services.generation.target.rows import Rows, RowsBuilder
from services.generation.target.target import PassOutput, Target
from tests.examples import examples
from tests.fakes.tiny_head import make_tiny_adapter
from tests.fakes.tiny_model import make_tiny_model

ADAPTERS = {
    "small": {"rank": 1, "modules": ("q_proj", "down_proj")},
    "odd": {"rank": 5, "ranks": {"up_proj": 7}, "layers": (1,)},
    "wide": {"rank": 64},
}

battery = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Odd sizes, so that no loop of a kernel comes out even."""
    return make_tiny_model(tmp_path_factory.mktemp("base"), hidden=72, heads=6, kv_heads=3, intermediate_size=101)


@pytest.fixture(scope="module")
def directories(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: make_tiny_adapter(folder / name, base, seed=seed, **kind)  # type: ignore[arg-type]
        for seed, (name, kind) in enumerate(ADAPTERS.items())
    }


@pytest.fixture(scope="module")
def mixed(base: Path, directories: dict[str, Path]) -> CpuTarget:
    """All three adapters loaded."""
    return load_target(base, cache_tokens=40 * 64, adapters=directories)


@pytest.fixture(scope="module")
def lone(base: Path, directories: dict[str, Path]) -> list[CpuTarget]:
    """One target for each adapter, loaded alone, and last one without any: the place of -1."""
    alone = [load_target(base, cache_tokens=20 * 64, adapters={name: path}) for name, path in directories.items()]
    return [*alone, load_target(base, cache_tokens=20 * 64)]


def stream(target: Target, tokens: list[int], adapter: int) -> Float32:
    """The logits of the last token of a history computed one row at a time."""
    table: list[int] = []
    target.blocks.extend(table, len(tokens))
    for position, token in enumerate(tokens):
        rows = RowsBuilder()
        rows.add_tree(table, position, [token], [-1], adapter)
        logits = target.forward(rows.build()).logits[0]
    target.blocks.release(table)
    return logits


@given(seed=st.integers(0, 2**32))
@battery
def test_trees_and_chunks_with_mixed_adapters_have_the_bits_of_lone_rows(
    mixed: CpuTarget, lone: list[CpuTarget], seed: int
) -> None:
    rng = random.Random(seed)
    token = lambda: rng.randrange(384)  # noqa: E731
    slots = [rng.randrange(-1, 3) for _ in range(rng.randrange(1, 5))]
    histories = [[token() for _ in range(rng.choice((0, 1, 5, 30)))] for _ in slots]
    trees = [
        ([token() for _ in range(width)], [-1, *(rng.choice((i - 1, rng.randrange(i))) for i in range(1, width))])
        for width in (rng.randrange(1, 9) for _ in slots)
    ]
    tables: list[list[int]] = [[] for _ in slots]
    before, rows = RowsBuilder(), RowsBuilder()
    try:
        for table, history, (tokens, parents), adapter in zip(tables, histories, trees, slots, strict=True):
            mixed.blocks.extend(table, len(history) + len(tokens))
            before.add_chunk(table, 0, history, want_last=False, adapter=adapter)
            rows.add_tree(table, len(history), tokens, parents, adapter)
        if len(before):
            mixed.forward(before.build())
        together = mixed.forward(rows.build()).logits
    finally:
        for table in tables:
            mixed.blocks.release(table)
    first = 0
    for history, (tokens, parents), adapter in zip(histories, trees, slots, strict=True):
        node = rng.randrange(len(tokens))
        path, at = [tokens[node]], parents[node]
        while at >= 0:
            path, at = [tokens[at], *path], parents[at]
        alone = stream(lone[adapter], history + path, min(adapter, 0))
        assert np.isfinite(alone).all()
        assert alone.tobytes() == together[first + node].tobytes(), (slots, adapter, node)
        first += len(tokens)


@pytest.mark.slow
def test_the_probe_covers_every_adapter_and_the_profile_does_not_depend_on_them(
    mixed: CpuTarget, lone: list[CpuTarget]
) -> None:
    bare, loaded = measure_profile(lone[-1]), measure_profile(mixed)
    assert loaded.passed, loaded.report.failures
    kernels = mixed.probe_kernels().compared  # which are the same for all adapters, and probed once
    assert loaded.report.compared - kernels > 3 * (bare.report.compared - kernels)
    assert (loaded.cid, loaded.document) == (bare.cid, bare.document)


@pytest.mark.slow
def test_the_probe_catches_an_update_that_depends_on_a_neighbour(
    mixed: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = mixed.forward

    def leaky(rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        computed = honest(rows, feature_layers)
        if rows.adapter_slots is not None:
            computed.logits[:] += np.float32(1e-4) * (len(set(rows.adapter_slots.tolist())) - 1)
        return computed

    monkeypatch.setattr(mixed, "forward", leaky)
    report = probe(mixed)
    assert not report.passed
    assert any("adapter wide" in failure for failure in report.failures)
    assert mixed.blocks.used == 0
