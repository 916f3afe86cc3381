"""Logits of a row have the bits of passes over one row, in any tree or chunk, with any neighbours and adapters."""

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from services.generation.target.arrays import Float32
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.probe import measure_profile, probe
from services.generation.target.rows import Rows, RowsBuilder
from services.generation.target.target import PassOutput, Target
from tests.examples import examples
from tests.fakes.rows import chunk_rows, tree_rows
from tests.fakes.tiny_head import make_tiny_adapters
from tests.fakes.tiny_model import TOKENS, logits_of, make_tiny_model

VARIANTS = {
    "llama": {},
    "mistral": {"sliding_window": 40},
    "qwen2": {"use_sliding_window": True, "sliding_window": 70, "max_window_layers": 1},
    "qwen3": {"head_dim": 24},
}

battery = settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module", params=VARIANTS, ids=list(VARIANTS))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CpuTarget:
    name = request.param
    path = make_tiny_model(tmp_path_factory.mktemp(name), architecture=name, **VARIANTS[name])
    return load_target(Path(path), cache_tokens=30 * 64)


def one_row(target: CpuTarget, table: list[int], length: int, token: int) -> Float32:
    return target.forward(tree_rows(table, length, [token])).logits[0]


@contextmanager
def tables_of(target: Target, count: int, tokens: int) -> Iterator[list[list[int]]]:
    """Tables with room for so many tokens each."""
    with ExitStack() as held:
        yield [held.enter_context(target.blocks.lent(tokens)) for _ in range(count)]


def test_chunks_of_two_long_sequences_have_the_bits_they_have_alone(family: CpuTarget) -> None:
    rng = random.Random(7)
    texts = [[rng.randrange(family.config.vocab_size) for _ in range(206)] for _ in range(2)]
    rows, alone = RowsBuilder(), []
    with tables_of(family, 2, 206) as tables:
        for table, text in zip(tables, texts, strict=True):
            for first, last in ((0, 200), (200, 206)):
                logits = family.forward(tree_rows(table, first, text[first:last])).logits.copy()
            alone.append(logits)
            rows.add_tree(table, 200, text[200:], range(-1, 5))
        assert family.forward(rows.build()).logits.tobytes() == np.concatenate(alone).tobytes()


@given(seed=st.integers(0, 2**32))
@battery
def test_a_row_of_a_tree_has_the_bits_it_has_alone(family: CpuTarget, seed: int) -> None:
    rng = random.Random(seed)
    token = lambda: rng.randrange(family.config.vocab_size)  # noqa: E731
    length, width = rng.choice((1, 30, 39, 61, 63, 64, 100, 128, 190)), rng.randrange(1, 20)
    history = [token() for _ in range(length)]
    parents = [-1, *(rng.choice((i - 1, rng.randrange(i))) for i in range(1, width))]
    tokens = [token() for _ in range(width)]
    with tables_of(family, 3, length + width + 1) as tables:
        rows = RowsBuilder()
        rows.add_chunk(tables[0], 0, history, want_last=False)
        rows.add_chunk(tables[1], 0, [token() for _ in range(rng.randrange(1, 40))], want_last=False)
        family.forward(rows.build())
        for position, known in enumerate(history):
            one_row(family, tables[2], position, known)

        rows = RowsBuilder()
        beside = rng.randrange(1, 5)
        rows.add_tree(tables[1], 0, [token() for _ in range(beside)], list(range(-1, beside - 1)))
        rows.add_tree(tables[0], length, tokens, parents)
        together = family.forward(rows.build()).logits[beside:]
        for node in range(width):
            path = [node]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            for depth, step in enumerate(path):
                alone = one_row(family, tables[2], length + depth, tokens[step])
            assert alone.tobytes() == together[node].tobytes(), (length, parents, node)


@given(seed=st.integers(0, 2**32))
@battery
def test_the_chunks_of_a_prompt_do_not_matter(family: CpuTarget, seed: int) -> None:
    rng = random.Random(seed)
    tokens = [rng.randrange(family.config.vocab_size) for _ in range(rng.randrange(2, 200))]
    with tables_of(family, 2, len(tokens)) as tables:
        alone = [one_row(family, tables[0], position, token) for position, token in enumerate(tokens)]
        at = 0
        while at < len(tokens):
            chunk = tokens[at : at + rng.choice((1, 2, 5, 17, 33, 64, 100))]
            rows = chunk_rows(tables[1], at, chunk)
            at += len(chunk)
            assert family.forward(rows).logits[0].tobytes() == alone[at - 1].tobytes()


def test_moved_slots_carry_the_bits_of_the_accepted_path(family: CpuTarget) -> None:
    tokens, parents, path = [3, 4, 5, 6, 7, 8], [-1, 0, 0, 2, 2, 4], [0, 2, 4, 5]
    with tables_of(family, 2, 80) as tables:
        for table in tables:
            family.forward(chunk_rows(table, 0, list(range(62)), want_last=False))
        family.forward(tree_rows(tables[0], 62, tokens, parents))
        slot = lambda place: tables[0][place // 64] * 64 + place % 64  # noqa: E731
        family.move([slot(62 + node) for node in path[1:]], [slot(62 + place) for place in range(1, 4)])
        for depth, node in enumerate(path):
            one_row(family, tables[1], 62 + depth, tokens[node])
        after = [one_row(family, table, 66, 9).tobytes() for table in tables]
        assert after[0] == after[1]


LAYERS = (3, 0, 2, 4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("deep"), layers=4)


@pytest.fixture(scope="module")
def target(directory: Path) -> Target:
    return load_target(directory)


def chunk(target: Target, tokens: list[int], at: int = 0, table: list[int] | None = None) -> Rows:
    table = [] if table is None else table
    target.blocks.extend(table, at + len(tokens))
    return chunk_rows(table, at, tokens)


def test_features_are_the_hidden_states_of_transformers(target: Target, directory: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        states = model(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    found = target.forward(chunk(target, TOKENS), LAYERS).features.reshape(len(TOKENS), len(LAYERS), -1)
    for place, layer in enumerate(LAYERS):
        if layer < target.config.layers:  # transformers normalises the last one
            np.testing.assert_allclose(found[:, place], states[layer][0].numpy(), rtol=1e-4, atol=2e-5)


def test_the_last_features_are_what_the_final_norm_takes(target: Target) -> None:
    one = target.forward(chunk(target, TOKENS), (target.config.layers,)).features
    assert one.shape == (len(TOKENS), target.config.hidden_size)
    assert not np.allclose(np.square(one).mean(axis=1), 1.0, atol=0.1)


def test_reading_features_changes_no_bit_of_the_logits(target: Target) -> None:
    without = target.forward(chunk(target, TOKENS))
    assert without.features.shape == (len(TOKENS), 0)
    assert target.forward(chunk(target, TOKENS), LAYERS).logits.tobytes() == without.logits.tobytes()


def test_features_of_a_row_do_not_depend_on_other_rows(target: Target) -> None:
    together = target.forward(chunk(target, TOKENS), LAYERS).features
    table: list[int] = []
    pieces = [target.forward(chunk(target, TOKENS[at : at + 7], at, table), LAYERS).features for at in range(0, 90, 7)]
    assert np.concatenate(pieces).tobytes() == together.tobytes()


def test_rows_without_a_question_leave_the_others_as_they_are(target: Target) -> None:
    with tables_of(target, 3, len(TOKENS) + 5) as tables:
        target.forward(chunk_rows(tables[0], 0, TOKENS, want_last=False))
        mixed = RowsBuilder()
        mixed.add_chunk(tables[1], 0, TOKENS, want_last=True)
        mixed.add_tree(tables[0], len(TOKENS), [7, 8, 9, 10, 11], [-1, 0, 0, 1, 2])
        mixed.add_chunk(tables[2], 0, TOKENS[:40], want_last=False)
        rows = mixed.build()
        every = target.forward(rows, (target.config.layers,)).logits  # for their features, all go to the end
        assert target.forward(rows).logits.tobytes() == every.tobytes()
        assert every.shape == (6, target.config.vocab_size)
        mixed._wanted = rows.wanted[[0, 1, 3, 5]].tolist()  # of the tree: the root, one branch's first, another's last
        assert target.forward(mixed.build()).logits.tobytes() == every[[0, 1, 3, 5]].tobytes()


ADAPTERS = {
    "small": {"rank": 1, "modules": ("q_proj", "down_proj")},
    "odd": {"rank": 5, "ranks": {"up_proj": 7}, "layers": (1,)},
    "wide": {"rank": 64},
}

adapted_battery = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Odd sizes, so that no loop of a kernel comes out even."""
    return make_tiny_model(tmp_path_factory.mktemp("base"), hidden=72, heads=6, kv_heads=3, intermediate_size=101)


@pytest.fixture(scope="module")
def directories(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_tiny_adapters(tmp_path_factory.mktemp("adapters"), base, ADAPTERS)


@pytest.fixture(scope="module")
def mixed(base: Path, directories: dict[str, Path]) -> CpuTarget:
    """All three adapters loaded."""
    return load_target(base, cache_tokens=40 * 64, adapters=directories)


@pytest.fixture(scope="module")
def lone(base: Path, directories: dict[str, Path]) -> list[CpuTarget]:
    """One target for each adapter, loaded alone, and last one without any: the place of -1."""
    alone = [load_target(base, cache_tokens=20 * 64, adapters={name: path}) for name, path in directories.items()]
    return [*alone, load_target(base, cache_tokens=20 * 64)]


@given(seed=st.integers(0, 2**32))
@adapted_battery
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
        text = history + path
        alone = logits_of(lone[adapter], [1] * len(text), text, min(adapter, 0))[-1]
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
