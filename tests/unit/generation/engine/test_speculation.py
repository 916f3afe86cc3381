"""Drafts of running sequences: failures, features, turns of methods, grammars."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.engine.core import EngineSettings
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Budget, Draft, Drafter, DraftRequest
from services.generation.engine.grammar_guide import GrammarGuide
from services.generation.engine.request import EngineRequest, SamplingParams, StructuredOutputs
from services.generation.engine.sampling.processors import GrammarMask
from services.generation.engine.tree import TokenTree
from services.generation.engine.turns import Gains, Turns
from services.generation.target.arrays import Float32
from services.generation.target.cpu import CpuTarget
from services.generation.target.unread import LogitRows
from tests.examples import examples
from tests.fakes.drafters import Panic
from tests.fakes.engine_runs import Collected, run
from tests.fakes.grammars import CONSTRAINTS, VOCAB, encoded, grammar, ids
from tests.fakes.grammars import END_ID as END
from tests.fakes.rows import chunk_rows


@dataclass
class Reader(Draft):
    """One sequence of `ReadingDrafter`."""

    truth: Sequence[int]
    start: int
    broken: bool
    features: list[Float32] = field(default_factory=list)
    read_to: int = 0
    released: int = 0

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        assert start == self.read_to
        assert len(tokens) > start + len(features) - 1
        self.features.append(features.copy())
        self.read_to += len(features)

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: LogitRows) -> None:
        assert len(tokens) - len(path) <= self.read_to + 1
        assert tokens[-1 - len(path) : -1] == [tree.tokens[node] for node in path]

    def release(self) -> None:
        self.released += 1
        if self.read_to and self.start >= 0:
            self.features, self.read_to = [], 0


class ReadingDrafter(Drafter):
    """Drafts the truth beside a wrong token, from layers of its own; fails for one sequence if `broken`."""

    def __init__(self, layers: tuple[int, ...], truth: dict[str, Sequence[int]], broken: str = "") -> None:
        self.feature_layers, self._truth, self._broken = layers, truth, broken
        self.readers: dict[str, Reader] = {}
        self.largest = 0
        self.final: dict[str, Float32] = {}

    def begin(self, request: EngineRequest) -> Reader:
        name = request.request_id
        self.readers[name] = Reader(self._truth.get(name, ()), len(request.prompt), name == self._broken)
        return self.readers[name]

    def propose(self, asks: Sequence[DraftRequest]) -> list[TokenTree]:
        self.largest = max(self.largest, len(asks))
        trees = []
        for ask in asks:
            assert isinstance(ask.draft, Reader)
            if ask.draft.broken:
                raise RuntimeError("a drafter's bug")
            name = next(name for name, reader in self.readers.items() if reader is ask.draft)
            self.final[name] = np.concatenate(ask.draft.features) if ask.draft.features else np.empty((0, 0))
            right = ask.draft.truth[len(ask.tokens) - ask.draft.start :][:3]
            nodes, parents = [ask.tokens[-1], 7], [-1, 0]
            for token in right:
                nodes.append(token)
                parents.append(0 if len(nodes) == 3 else len(nodes) - 2)
            trees.append(TokenTree(tuple(nodes), tuple(parents)))
        return trees


def requests_for(method: str = "reading", count: int = 4) -> list[EngineRequest]:
    sampling = SamplingParams(temperature=1.0, seed=2, max_tokens=60, ignore_eos=True)
    return [EngineRequest(f"r{n}", tuple(range(n, n + 50)), sampling, method=method) for n in range(count)]


def truth_of(target: CpuTarget) -> dict[str, Sequence[int]]:
    collected = run(target, requests_for("off"))
    return {name: outcome.token_ids for (name, _), outcome in collected.outcomes.items()}


def features_of(target: CpuTarget, tokens: list[int], layers: tuple[int, ...]) -> Float32:
    with target.blocks.lent(len(tokens)) as table:
        return target.forward(chunk_rows(table, 0, tokens), layers).features


def check(collected: Collected, drafter: ReadingDrafter, target: CpuTarget, truth: dict[str, Sequence[int]]) -> None:
    for request in requests_for():
        name = request.request_id
        assert collected.outcomes[request.key].token_ids == truth[name]
        tokens = [*request.prompt, *truth[name]][: len(drafter.final[name])]
        assert len(tokens) > 60
        assert drafter.final[name].tobytes() == features_of(target, tokens, drafter.feature_layers).tobytes()
        assert drafter.readers[name].released >= 1


@pytest.mark.parametrize("rows", [(8, 3), (256, 64)])
def test_the_features_of_every_token_are_read_in_order(target: CpuTarget, rows: tuple[int, int]) -> None:
    truth = truth_of(target)
    drafter = ReadingDrafter((2, 0), truth)
    schedule = EngineSettings(max_rows=rows[0], prefill_rows=rows[1])
    collected = run(target, requests_for(), drafters={"reading": drafter}, settings=schedule, arrivals=[0, 2, 2, 4])
    check(collected, drafter, target, truth)
    assert drafter.largest == 4 or schedule.max_rows < 64


def test_after_a_preemption_they_are_read_again(target: CpuTarget, cramped_target: CpuTarget) -> None:
    truth = truth_of(target)
    drafter = ReadingDrafter((1,), truth)
    collected = run(cramped_target, requests_for(), drafters={"reading": drafter})
    assert collected.preemptions > 0
    check(collected, drafter, target, truth)
    assert sum(reader.released for reader in drafter.readers.values()) > 4


def test_a_broken_drafter_costs_no_other_method_a_draft(target: CpuTarget) -> None:
    truth = truth_of(target)
    drafter = ReadingDrafter((1,), truth, broken="r2")
    collected = run(target, requests_for(), drafters={"reading": drafter})
    passes = {name: outcome.metrics.target_passes for (name, _), outcome in collected.outcomes.items()}
    assert {name: tuple(outcome.token_ids) for (name, _), outcome in collected.outcomes.items()} == truth
    assert passes.pop("r2") == 60
    assert max(passes.values()) < 25
    assert drafter.readers["r2"].released == 1


@pytest.mark.parametrize("call", ["begin", "propose", "read", "observe", "finish", "release"])
def test_a_panic_in_a_drafter_ends_its_drafts_alone(
    target: CpuTarget, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth, drafter = truth_of(target), ReadingDrafter((1,), {})
    monkeypatch.setattr(ReadingDrafter if call in ("begin", "propose") else Reader, call, Mock(side_effect=Panic))
    outcomes = run(target, requests_for(), drafters={"reading": drafter}).outcomes
    assert {name: outcome.token_ids for (name, _), outcome in outcomes.items()} == truth


def test_a_drafter_drafts_for_sequences_that_begin_when_its_code_is_compiled(target: CpuTarget) -> None:
    truth = truth_of(target)
    drafter = ReadingDrafter((1,), truth)
    passes = []
    for drafter.ready in (False, True):
        outcomes = run(target, requests_for(), drafters={"reading": drafter}).outcomes
        assert {name: outcome.token_ids for (name, _), outcome in outcomes.items()} == truth
        passes.append({outcome.metrics.target_passes for outcome in outcomes.values()})
    assert passes[0] == {60}
    assert max(passes[1]) < 25


class _Sly(TokenTree):
    """A tree that calls every token its child's."""

    def child(self, node: int, token: int) -> int | None:
        return node + 1 if node + 1 < len(self.tokens) else None


class _Slyly(Draft):
    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        return _Sly((tokens[-1], 1, 2), (-1, 0, 1))


class SlyDrafter(Drafter):
    def begin(self, request: EngineRequest) -> Draft:
        return _Slyly()


def test_what_a_drafter_s_tree_says_of_itself_is_not_believed(target: CpuTarget) -> None:
    plain = EngineRequest("r", (5, 9, 300), SamplingParams(max_tokens=20, ignore_eos=True))
    sly = replace(plain, method="sly")
    expected = run(target, [plain]).outcomes[plain.key].token_ids
    assert run(target, [sly], drafters={"sly": SlyDrafter()}).outcomes[sly.key].token_ids == expected


@pytest.mark.parametrize(("fixed", "asked"), [(1.0, True), (0.0, False)])
def test_where_no_row_pays_no_drafter_is_asked(target: CpuTarget, fixed: float, asked: bool) -> None:
    truth = truth_of(target)
    drafter = ReadingDrafter((0,), truth)
    collected = run(target, requests_for(), drafters={"reading": drafter}, cost=PassCost.line(fixed, row=0.1))
    assert (drafter.largest > 0) is asked
    assert {name: outcome.token_ids for (name, _), outcome in collected.outcomes.items()} == truth


def passes(turns: Turns, count: int, gain: float | dict[str, float], together: int = 1) -> list[str | None]:
    """The method whose turn it was in each of so many passes with this gain, of every method or by method."""
    had = []
    for _ in range(count):
        had.append(turns.under(together))
        turns.passed(gain[str(had[-1])] if isinstance(gain, dict) else gain)
    return had


def test_a_method_that_pays_keeps_its_turn_but_for_one_of_a_new_one_in_each_of_three_requests() -> None:
    gains, asked, gain = Gains(), EngineRequest("r", (0,), SamplingParams()), {"eagle3": 0.5, "lookahead": -0.5}
    for _ in range(3):
        turns = gains.begin(asked, gain)
        assert passes(turns, 100, gain) == ["eagle3"] * 8 + ["lookahead"] * 8 + ["eagle3"] * 84
    assert passes(gains.begin(asked, gain), 100, gain) == ["eagle3"] * 100


def test_a_better_method_takes_the_turn_over_from_a_preferred_one() -> None:
    had = passes(Turns(("eagle3", "lookahead")), 4000, {"eagle3": 0.1, "lookahead": 0.3})
    assert had[:8] == ["eagle3"] * 8
    assert had.count("lookahead") > 3000


def test_a_method_that_the_first_request_spoke_against_is_tried_in_the_next() -> None:
    gains, asked, methods = Gains(), EngineRequest("r", (0,), SamplingParams()), ("eagle3", "lookahead")
    passes(gains.begin(asked, methods), 64, {"eagle3": -0.1, "lookahead": 1.0})
    for _ in range(3):
        passes(gains.begin(asked, methods), 64, {"eagle3": 1.3, "lookahead": 0.5})
    assert gains.begin(asked, methods).method == "eagle3"


def test_where_no_method_pays_trials_cost_a_hundredth_of_all_passes() -> None:
    """In one request as in many of a kind, one after the other or concurrent."""
    gains, asked, lost = Gains(), EngineRequest("r", (0,), SamplingParams()), {"eagle3": 0.5, "lookahead": 0.2}
    rests = trials = 0
    for _ in range(20):
        together = [gains.begin(asked, lost) for _ in range(4)]
        for turns in together * 64:
            method = turns.under(1)
            turns.passed(-lost.get(str(method), 0.0))
            rests, trials = rests + (method is None), trials + (method is not None)
    assert 0 < 0.2 * trials < 0.012 * rests + 64 * 0.5


@pytest.mark.parametrize(("gain", "once"), [(-1000.0, 0.0), (0.0, 1000.0)])
def test_a_method_that_something_held_up_once_gets_its_turn_again(gain: float, once: float) -> None:
    gains, asked = Gains(), EngineRequest("r", (0,), SamplingParams())
    gains.begin(asked, ("eagle3",)).passed(gain, once)
    for _ in range(300):
        turns, first, had = gains.begin(asked, ("eagle3",)), 2.0, 0
        for _ in range(64):
            drafts = turns.method is not None
            turns.passed(0.5 * drafts, first * drafts)
            first, had = first * (not drafts), had + drafts
    assert had == 64


def test_what_a_first_draft_takes_counts_for_later_requests_alone() -> None:
    gains, asked = Gains(), EngineRequest("r", (0,), SamplingParams())
    first = gains.begin(asked, ("eagle3",))
    for once in (8.0, *[0.0] * 23):
        first.passed(0.2, once)
    assert first.method == "eagle3"
    assert gains.begin(asked, ("eagle3",)).method is None


def test_a_request_begins_with_what_paid_in_others() -> None:
    gains, asked = Gains(), EngineRequest("r", (0,), SamplingParams())
    passes(gains.begin(asked, ("eagle3", "lookahead")), 8, -0.5)
    assert gains.begin(asked, ("eagle3", "lookahead")).method == "lookahead"


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "b"}, {"adapter": "cidv1:sha256:1"}, {"sampling": SamplingParams(1.0)}, {"prediction": (1, 2)},
        {"grammar": CONSTRAINTS[0]},
    ],
)  # fmt: skip
def test_what_requests_of_one_kind_lost_is_unknown_to_others(other: dict[str, Any]) -> None:
    gains, asked = Gains(), EngineRequest("r", (0,), SamplingParams(), tenant="a")
    passes(gains.begin(asked, ("eagle3",)), 8, -0.5)
    assert gains.begin(asked, ("eagle3",)).method is None
    if source := other.get("grammar"):
        other = {"grammar": grammar(source)}
    assert gains.begin(replace(asked, **other), ("eagle3",)).method == "eagle3"


ROOT = 7
TWO = StructuredOutputs("choice", json.dumps(["the ledger keeps", "the drafter guesses"]))


def guide(source: StructuredOutputs) -> GrammarGuide:
    return GrammarGuide(grammar(source), frozenset((END,)), 1)


def paths(tree: TokenTree) -> list[list[int]]:
    """From below the root to each node."""
    found: list[list[int]] = []
    for node, parent in enumerate(tree.parents):
        found.append([] if node == 0 else [*found[parent], tree.tokens[node]])
    return found


def test_a_forced_stretch_is_drafted_for_nothing() -> None:
    forced = guide(StructuredOutputs("choice", '["every receipt is signed"]'))
    assert forced.forces
    text = encoded("every receipt is signed")
    assert forced.fit(TokenTree.root(ROOT), 64, 64) == TokenTree.chain((ROOT, *text, END))
    assert forced.fit(TokenTree.root(ROOT), 3, 64) == TokenTree.chain((ROOT, *text[:2]))
    assert forced.fit(TokenTree.root(ROOT), 64, 1) == TokenTree.chain((ROOT, text[0]))
    forced.follow([ROOT, *text])
    assert forced.fit(TokenTree.root(text[-1]), 64, 64) == TokenTree.chain((text[-1], END))


def test_a_forbidden_branch_is_cut_and_an_allowed_one_grows_by_what_it_forces() -> None:
    chosen = guide(TWO)
    done = encoded("the")
    chosen.follow([ROOT, *done])
    assert not chosen.forces
    rest = encoded("the drafter guesses")[len(done) :]
    proposed = TokenTree((done[-1], 5, rest[0], 9), (-1, 0, 0, 1))
    assert chosen.fit(proposed, 64, 64) == TokenTree.chain((done[-1], *rest, END))


@given(seed=st.integers(0, 2**32), source=st.sampled_from(CONSTRAINTS))
@settings(deadline=None, max_examples=examples(80))
def test_no_node_is_forbidden_none_allowed_is_lost_and_the_bounds_hold(seed: int, source: StructuredOutputs) -> None:
    rng = random.Random(seed)
    fitting, prefix = guide(source), [ROOT]
    for _ in range(rng.randrange(12)):
        allowed = _allowed(source, prefix[1:])
        token = rng.choice(allowed)
        if token == END:
            break
        prefix.append(token)
    fitting.follow(prefix)
    tokens, parents = [prefix[-1]], [-1]
    found: list[list[int]] = [[]]
    for _ in range(rng.randrange(12)):
        parent = rng.randrange(len(tokens))
        allowed = _allowed(source, [*prefix[1:], *found[parent]]) if END not in found[parent] else [3]
        token = rng.choice(allowed) if rng.random() < 0.7 and allowed else rng.randrange(VOCAB)
        if [*found[parent], token] not in found:
            tokens.append(token)
            parents.append(parent)
            found.append([*found[parent], token])
    proposed = TokenTree(tuple(tokens), tuple(parents))
    fitted = fitting.fit(proposed, 400, 64)
    kept = {tuple(path) for path in paths(fitted)}
    for path in kept:
        assert not path or path[-1] in _allowed(source, [*prefix[1:], *path[:-1]])
    for path in paths(proposed):
        legal = all(t in _allowed(source, [*prefix[1:], *path[:n]]) for n, t in enumerate(path) if END not in path[:n])
        assert (tuple(path) in kept) == (legal and END not in path[:-1])
    nodes, depth = rng.randrange(1, 9), rng.randrange(1, 5)
    small = fitting.fit(proposed, nodes, depth)
    assert len(small) <= nodes
    assert max(small.depths()) <= depth
    assert {tuple(path) for path in paths(small)} <= kept


def _allowed(source: StructuredOutputs, output: list[int]) -> list[int]:
    """The tokens that the sampler's own mask allows after an output; none if the grammar forbids the output."""
    laid = GrammarMask(grammar(source), frozenset((END,)))
    for token in output:
        if token not in ids(laid):
            return []
        laid.accept(token)
    return ids(laid)
