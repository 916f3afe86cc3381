"""A draft model saves passes, follows what was accepted, steps aside if it has to, and changes no token."""

import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from services.generation.drafting import draft_model
from services.generation.drafting.acceptance import first_choice_kind, model_kind
from services.generation.drafting.draft_model import DraftModelDrafter, ModelDraft
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.engine.cost import StepCost
from services.generation.engine.drafter import DraftRequest
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput
from tests.fakes.drafters import budget as budget_of
from tests.fakes.engine_runs import run
from tests.fakes.rows import chunk_rows
from tests.fakes.tiny_model import make_tiny_model
from tests.unit.generation.engine.test_identity import alone, check_unchanged, parameters, short_battery, signature

BOLD = budget_of(nodes=64, depth=8, breakeven=0.001)
STEP = StepCost(fixed=0.01, row=0.0001)
NOTHING = np.empty((1, 384), np.float32)


@pytest.fixture(scope="module")
def kin(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, its weights a little off: it predicts some tokens of the tiny model."""
    folder = shutil.copytree(model, tmp_path_factory.mktemp("kin") / "model")
    weights, generator = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(0)
    off = {name: each + 0.01 * torch.randn(each.shape, generator=generator) for name, each in weights.items()}
    save_file(off, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def kin_target(kin: Path) -> CpuTarget:
    return load_target(kin, cache_tokens=40 * 64)


def drafter_of(model: CpuTarget, step: StepCost = STEP) -> DraftModelDrafter:
    return DraftModelDrafter(model, 384, step)


def trusted(model: CpuTarget) -> DraftModelDrafter:
    """One whose greedy drafts have always held, whatever their share: its chains are as long as they may be."""
    drafter = drafter_of(model)
    kinds = [first_choice_kind(depth) for depth in range(1, 9)]
    kinds += [model_kind(0, number / 100, depth) for number in range(100) for depth in range(1, 9)]
    acceptance = drafter.begin(_ask()).state.acceptance
    acceptance.record(np.tile(kinds, 1000), np.ones(1000 * len(kinds), np.bool_))
    return drafter


def requests_of(rng: random.Random, count: int) -> list[EngineRequest]:
    requests = []
    for number in range(count):
        prompt = tuple(rng.randrange(384) for _ in range(rng.choice((1, 2, 40, 63, 64, 65, 130))))
        method = rng.choice(("draft", "draft", "lookahead", "off"))
        k = rng.choice((None, 1, 4, 16)) if method == "draft" else None
        requests.append(EngineRequest(f"r{number}", prompt, parameters(rng), rng.randrange(3), method=method, k=k))
    return requests


@given(seed=st.integers(0, 2**32))
@short_battery
def test_no_draft_model_changes_a_token(
    target: CpuTarget, cramped_target: CpuTarget, kin_target: CpuTarget, seed: int
) -> None:
    rng = random.Random(seed)
    requests = requests_of(rng, rng.randrange(1, 6))
    expected = {request.key: alone(target, request) for request in requests}
    drafters = {"draft": drafter_of(kin_target), "lookahead": LookaheadDrafter()}
    check_unchanged(rng.choice((target, cramped_target)), requests, expected, drafters, rng)
    assert kin_target.blocks.used == 0


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_draft_model_equal_to_the_target_is_always_right(
    target: CpuTarget, model: Path, temperature: float, caplog: pytest.LogCaptureFixture
) -> None:
    sampling = SamplingParams(
        temperature=temperature, seed=5, max_tokens=60, min_tokens=60, stop_token_ids=(5, 8), ignore_eos=True,
        logit_bias=((7, 3.0), (9, -100.0)),
    )  # fmt: skip
    requests = [EngineRequest(f"r{n}", tuple(range(n, 3 + 40 * n)), sampling, n, method="draft", k=4) for n in range(3)]
    equal = load_target(model, cache_tokens=40 * 64)
    collected = run(target, requests, drafters={"draft": drafter_of(equal)})
    for request in requests:
        metrics = collected.outcomes[request.key].metrics
        assert signature(collected, request) == alone(target, request)
        assert metrics.num_accepted_tokens == metrics.num_draft_tokens
        assert metrics.target_passes <= 18  # 13 with k tokens in every draft; trust has to be earned
    assert equal.blocks.used == 0
    assert not caplog.records


class Fed:
    """A sequence whose drafts are accepted at random."""

    def __init__(self, drafter: DraftModelDrafter, rng: random.Random) -> None:
        self.rng = rng
        self.tokens = [rng.randrange(384) for _ in range(rng.choice((1, 2, 30, 63, 64, 65, 300)))]
        self.draft = drafter.begin(EngineRequest("r", tuple(self.tokens), SamplingParams()))

    def ask(self) -> DraftRequest:
        return DraftRequest(self.draft, self.tokens, replace(BOLD, depth=self.rng.choice((1, 3, 8))))

    def accept(self, tree: TokenTree) -> None:
        held = self.rng.randrange(len(tree))
        self.tokens += [*tree.tokens[1 : held + 1], self.rng.randrange(384)]
        self.draft.observe(self.tokens, tree, list(range(held + 1)), NOTHING)


def cached(model: CpuTarget, table: Sequence[int], length: int) -> Float32:
    places = np.arange(length)
    blocks, offsets = np.array(table)[places // 64], places % 64
    keys: Float32 = model._parts.cache.groups[0].keys[:, blocks, :, :, offsets]
    return keys


@given(seed=st.integers(0, 2**32))
@short_battery
def test_the_cache_follows_the_accepted_path(kin_target: CpuTarget, seed: int) -> None:
    rng = random.Random(seed)
    drafter = drafter_of(kin_target)
    sequences = [Fed(drafter, rng) for _ in range(rng.randrange(1, 4))]
    for _ in range(6):
        asking = [sequence for sequence in sequences if rng.random() < 0.7]
        for sequence, tree in zip(asking, drafter.propose([s.ask() for s in asking]), strict=True):
            if rng.random() < 0.8:  # else its draft was not verified
                sequence.accept(tree)
            if rng.random() < 0.3:  # a pass with another method's draft
                sequence.tokens += [rng.randrange(384) for _ in range(rng.randrange(1, 9))]
        if rng.random() < 0.2:
            sequences[0].draft.release()
    for sequence in sequences:
        draft = sequence.draft
        draft.follow(sequence.tokens)
        if draft.length:
            table = list[int]()
            kin_target.blocks.extend(table, draft.length)
            kin_target.forward(chunk_rows(table, 0, sequence.tokens[: draft.length], want_last=False))
            found = cached(kin_target, draft.table, draft.length)
            np.testing.assert_array_equal(found, cached(kin_target, table, draft.length))
            kin_target.blocks.release(table)
        draft.release()
    assert kin_target.blocks.used == 0


def test_what_was_drafted_and_accepted_is_not_read_again(kin_target: CpuTarget) -> None:
    drafter = trusted(kin_target)
    sequence = Fed(drafter, random.Random(1))
    (tree,) = drafter.propose([DraftRequest(sequence.draft, sequence.tokens, BOLD)])
    assert len(tree) == 9
    read = len(sequence.tokens)
    sequence.tokens += [*tree.tokens[1:6], 383]
    sequence.draft.follow(sequence.tokens)
    assert sequence.draft.length == read + 5
    sequence.draft.release()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_full_cache_ends_no_request(
    target: CpuTarget, kin: Path, temperature: float, caplog: pytest.LogCaptureFixture
) -> None:
    cramped = load_target(kin, cache_tokens=3 * 64)
    sampling = SamplingParams(temperature=temperature, seed=2, max_tokens=50, ignore_eos=True)
    requests = [EngineRequest(f"r{n}", tuple(range(n, n + 60)), sampling, method="draft") for n in range(4)]
    collected = run(target, requests, drafters={"draft": drafter_of(cramped)})
    assert [signature(collected, request) for request in requests] == [alone(target, request) for request in requests]
    drafted = [collected.outcomes[request.key].metrics.num_drafts for request in requests]
    assert max(drafted) > 0
    assert cramped.blocks.used == 0
    assert not caplog.records


def test_past_its_context_and_beyond_its_vocabulary_it_steps_aside(
    target: CpuTarget, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short = load_target(make_tiny_model(tmp_path, vocab=300, context=96, layers=1), cache_tokens=40 * 64)
    sampling = SamplingParams(temperature=1.2, seed=2, max_tokens=90, ignore_eos=True)
    requests = [EngineRequest(f"r{n}", tuple(range(300, 301 + 20 * n)), sampling, n, method="draft") for n in range(4)]
    collected = run(target, requests, drafters={"draft": drafter_of(short)})
    assert [signature(collected, request) for request in requests] == [alone(target, request) for request in requests]
    assert all(collected.outcomes[request.key].metrics.num_drafts for request in requests)
    drafter = trusted(short)
    draft = drafter.begin(_ask())
    for length, nodes in ((94, 4), (96, 2), (97, 1), (200, 1)):
        assert len(drafter.propose([DraftRequest(draft, [0] * length, replace(BOLD, depth=3))])[0]) == nodes
        draft.release()
    assert not caplog.records


def test_of_a_larger_vocabulary_it_drafts_what_the_target_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = load_target(make_tiny_model(tmp_path, vocab=500, layers=1), cache_tokens=40 * 64)
    drafter, forward = drafter_of(large), large.forward

    def beyond(rows: Rows) -> PassOutput:
        out = forward(rows)
        out.logits[:, 400] = 100.0
        return out

    monkeypatch.setattr(large, "forward", beyond)
    draft = drafter.begin(_ask())
    tree = drafter.propose([DraftRequest(draft, [1, 2, 3], BOLD)])[0]
    assert len(tree) > 1
    assert max(tree.tokens) < 384


def test_passes_of_a_draft_model_teach_what_they_take(kin_target: CpuTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, forward, now = drafter_of(kin_target), kin_target.forward, [0.0]

    def slow(rows: Rows) -> PassOutput:
        now[0] += 3.0 * (STEP.fixed + len(rows) * STEP.row)
        return forward(rows)

    monkeypatch.setattr(kin_target, "forward", slow)
    monkeypatch.setattr(draft_model, "perf_counter", lambda: now[0])
    for number in range(100):
        draft = drafter.begin(_ask())
        drafter.propose([DraftRequest(draft, [1, 2, number], BOLD)])
        draft.release()
    assert drafter.cost.pace.step == pytest.approx(3.0, rel=0.05)


def _ask(**members: object) -> EngineRequest:
    return EngineRequest("r", (1,), SamplingParams(), **members)  # type: ignore[arg-type]


def test_sequences_are_drafted_for_in_the_same_passes(kin_target: CpuTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = list[int]()
    forward = kin_target.forward
    monkeypatch.setattr(kin_target, "forward", lambda rows: passes.append(len(rows)) or forward(rows))
    drafter = trusted(kin_target)
    drafts = [drafter.begin(_ask(k=k)) for k in (1, 3, 3)]
    trees = drafter.propose([DraftRequest(draft, [1, 2, n], BOLD) for n, draft in enumerate(drafts)])
    assert [len(tree) for tree in trees] == [2, 4, 4]
    assert passes == [9, 2, 2]
    for draft in drafts:
        assert isinstance(draft, ModelDraft)
        draft.release()
