"""The drafter alone: its cache follows accepted tokens, its trees keep their bounds, its noise is the sampler's."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from services.generation.drafting.draft_tree.candidates import (
    _REACH,
    NO_CONFIDENCE,
    DraftShape,
    ModelOutput,
    Samplings,
    Vocabulary,
    candidates,
)
from services.generation.drafting.draft_tree.draft_tree import DraftTree
from services.generation.drafting.draft_tree.nodes import Level
from services.generation.drafting.eagle3.checkpoint import Head, head_shapes
from services.generation.drafting.eagle3.drafter import Eagle3Drafter
from services.generation.drafting.eagle3.loading import confirm_layers
from services.generation.drafting.head_drafter import HeadDraft
from services.generation.engine.cost import EXPLORE_EVERY, StepCost
from services.generation.engine.drafter import Budget, DraftRequest
from services.generation.engine.economics import Costs, DraftCost
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sampling.sampler import Sampler
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32, Int64
from services.generation.target.blocks import BlockPool, slot_of
from services.generation.target.cpu import CpuTarget
from services.generation.target.errors import CacheFull
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput
from tests.fakes.drafters import budget as budget_of
from tests.fakes.heads import eagle3, head_config
from tests.fakes.rows import tree_rows
from tests.fakes.table_target import TableTarget
from tests.unit.generation.engine.test_identity import short_battery

KeysAndValues = tuple[Float32, Float32]

WIDE = budget_of(nodes=60, depth=8, breakeven=0.001)


@pytest.fixture(scope="module")
def drafter(target: CpuTarget) -> Eagle3Drafter:
    return eagle3(target)


class Fed:
    """A sequence whose features are a function of the position, so that they can be read again."""

    def __init__(self, drafter: Eagle3Drafter, seed: int, k: int | None = None, **parameters: int) -> None:
        self.rng = random.Random(seed)
        self.features = np.random.default_rng(seed).standard_normal((400, 3 * 64)).astype(np.float32)
        self.tokens = [self.token() for _ in range(self.rng.choice((2, 30, 63, 64, 65, 150)))]
        sampling = SamplingParams(temperature=self.rng.choice((0.0, 1.0)), seed=seed)
        self.request = EngineRequest("r", tuple(self.tokens), sampling, method="eagle3", k=k, parameters=parameters)
        self.drafter, self.draft = drafter, drafter.begin(self.request)
        self.read = 0

    def token(self) -> int:
        return self.rng.randrange(384)

    def prompt(self) -> None:
        while self.read < len(self.tokens) - 1:
            self.commit(min(self.rng.choice((1, 7, 64, 100)), len(self.tokens) - 1 - self.read))

    def commit(self, count: int) -> None:
        self.draft.read(self.tokens, self.read, self.features[self.read : self.read + count])
        self.read += count

    def accept(self, tree: TokenTree) -> None:
        """Walk down the tree at random, then on with a token of its own."""
        path, children = [0], [i for i in range(1, len(tree)) if tree.parents[i] == 0]
        while children and self.rng.random() < 0.8:
            path.append(self.rng.choice(children))
            children = [i for i in range(1, len(tree)) if tree.parents[i] == path[-1]]
        self.tokens += [*(tree.tokens[node] for node in path[1:]), self.token()]
        self.commit(len(path))
        self.draft.observe(self.tokens, tree, path, np.zeros((len(tree), 384), np.float32))

    def ask(self, budget: Budget = WIDE) -> DraftRequest:
        return DraftRequest(self.draft, self.tokens, budget)

    def cached(self) -> KeysAndValues:
        return entries_at(self.drafter, [slot_of(self.draft.table, i) for i in range(self.draft.length)])


def entries_at(drafter: Eagle3Drafter, slots: list[int]) -> KeysAndValues:
    cache, blocks, offsets = drafter._pass._programs._parts.cache, np.array(slots) // 64, np.array(slots) % 64
    return cache.keys[0][blocks, :, :, offsets], cache.values[0][blocks, :, offsets]


def from_scratch(drafter: Eagle3Drafter, sequence: Fed, entries: int) -> KeysAndValues:
    """Entry i reads feature i and token i + 1: all in one pass, in a cache of their own."""
    computing, table = drafter._pass, list[int]()
    computing.blocks.extend(table, entries)
    computing.read(tree_rows(table, 0, sequence.tokens[1:]), sequence.features[:entries])
    found = entries_at(drafter, [table[i // 64] * 64 + i % 64 for i in range(entries)])
    computing.blocks.release(table)
    return found


@given(seed=st.integers(0, 2**32))
@short_battery
def test_the_cache_after_accepted_paths_is_that_of_the_tokens_from_scratch(drafter: Eagle3Drafter, seed: int) -> None:
    rng = random.Random(seed)
    sequences = [Fed(drafter, seed + n, tree_width=rng.choice((1, 2, 4))) for n in range(3)]
    for sequence in sequences:
        sequence.prompt()
    for _ in range(6):
        asking = [s for s in sequences if rng.random() < 0.8]
        for sequence, tree in zip(asking, drafter.propose([s.ask() for s in asking]), strict=True):
            sequence.accept(tree)
        if rng.random() < 0.2:
            sequences[0].draft.release()
            sequences[0].read = 0
            sequences[0].prompt()
    drafter.propose([sequence.ask() for sequence in sequences])
    for sequence in sequences:
        entries = len(sequence.tokens) - 1
        assert sequence.draft.length == entries
        for found, expected in zip(sequence.cached(), from_scratch(drafter, sequence, entries), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        sequence.draft.release()
    assert drafter._pass.blocks.used == 0


@given(seed=st.integers(0, 2**32), nodes=st.integers(1, 20), depth=st.integers(1, 9), width=st.integers(1, 8))
@short_battery
def test_trees_keep_to_their_bounds(drafter: Eagle3Drafter, seed: int, nodes: int, depth: int, width: int) -> None:
    sequence = Fed(drafter, seed, k=6, tree_width=width, tree_tokens=12)
    sequence.prompt()
    tree = drafter.propose([sequence.ask(budget_of(nodes, depth, WIDE.breakeven))])[0]
    children = [tree.parents.count(node) for node in range(len(tree))]
    assert tree.tokens[0] == sequence.tokens[-1]
    assert len(tree) - 1 <= min(nodes, 12)
    assert max(tree.depths()) <= min(depth, 6)
    assert max(children) <= width
    assert len(set(zip(tree.tokens, tree.parents, strict=True))) == len(tree)
    sequence.draft.release()


def test_copies_without_the_head_keep_to_the_request_s_bound(
    target: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = eagle3(target, copies=True)
    monkeypatch.setattr(drafter, "_should_expand", lambda *_: False)
    prompt = [7, *range(40)] * 2
    for bounds, drafted in (({"tree_tokens": 5}, 5), ({}, 31)):
        asked = EngineRequest("r", tuple(prompt), SamplingParams(), method="eagle3", parameters=bounds)
        (tree,) = drafter.propose([DraftRequest(drafter.begin(asked), prompt, budget_of(60, 60, WIDE.breakeven))])
        assert tree.tokens == tuple([7, *range(40)] * 2)[-1:] + tuple([7, *range(40)][:drafted])


@pytest.mark.parametrize("rows", [256, 6])
def test_sequences_drafted_for_together_get_the_drafts_they_get_alone(
    rows: int, target: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if some sequences end earlier, and if a pass has no room for a level of all."""
    monkeypatch.setattr("services.generation.drafting.stepping.step_drafter.MOST_ROWS", rows)
    together, alone = eagle3(target), eagle3(target)
    together.cost = alone.cost = DraftCost(
        StepCost(1e-9, 1e-9), StepCost(1e-9, 1e-9)
    )  # steps are shared, and shares of them cost less
    first, second = ([Fed(drafter, k, tree_width=3, k=k) for k in range(2, 6)] for drafter in (together, alone))
    for sequence in (*first, *second):
        sequence.prompt()
    trees = together.propose([sequence.ask() for sequence in first])
    assert trees == [alone.propose([sequence.ask()])[0] for sequence in second]
    assert all(len(tree) > 1 for tree in trees)
    steps = [[each.draft.tree.steps for each in sequences if each.draft.tree] for sequences in (first, second)]
    assert steps[0] == steps[1]
    assert len(set(steps[0])) > 1


def test_a_draft_that_missed_features_says_so(drafter: Eagle3Drafter) -> None:
    sequence = Fed(drafter, 1)
    sequence.commit(1)
    with pytest.raises(ValueError, match="features"):
        drafter.propose([sequence.ask()])
    with pytest.raises(ValueError, match="features"):
        sequence.draft.read(sequence.tokens, 7, sequence.features[:1])
    sequence.draft.release()


def test_a_prompt_is_read_by_the_head_when_it_is_to_draft_and_not_before(target: CpuTarget) -> None:
    drafter = eagle3(target)
    sequence = Fed(drafter, 5)
    sequence.prompt()
    waiting = sequence.draft.waiting
    assert waiting == len(sequence.tokens) - 1
    dear = budget_of(WIDE.nodes, WIDE.depth, breakeven=1.0)
    for _ in range(5):
        assert len(drafter.propose([sequence.ask(dear)])[0]) == 1
    assert sequence.draft.waiting == waiting
    assert drafter._pass.blocks.used == 0
    assert len(drafter.propose([sequence.ask()])[0]) > 1
    assert sequence.draft.length == waiting
    sequence.draft.release()


def test_a_head_that_did_not_pay_is_tried_again_by_later_requests(
    target: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = eagle3(target)
    drafter.cost = DraftCost(StepCost(0.0, 0.0), StepCost(0.3, 0.0))
    monkeypatch.setattr(drafter.cost, "took", lambda *_: None)

    def drafts() -> int:
        sequence, drafted = Fed(drafter, 7), 0
        sequence.prompt()
        for _ in range(40):
            drafter.propose([sequence.ask()])
            drafted += sequence.draft.tree is not None and len(sequence.draft.tree) > 1
            sequence.accept(TokenTree.root(sequence.tokens[-1]))
        sequence.draft.release()
        return drafted

    found = [drafts() for _ in range(40)]
    assert 0 < found[0] < 10
    assert 0 < sum(found[20:]) < 60


def test_drafts_that_were_timed_too_dear_at_the_start_are_found_out(target: CpuTarget) -> None:
    drafter = eagle3(target)
    drafter.cost.once = StepCost(100.0, 0.0)
    looks = 0
    for _ in range(10):
        sequence = Fed(drafter, 7)
        sequence.prompt()
        for _ in range(40):
            drafter.propose([sequence.ask()])
            looks += sequence.draft.tree is not None and sequence.draft.tree.steps > 0
            sequence.accept(TokenTree.root(sequence.tokens[-1]))
        sequence.draft.release()
    assert looks == 400 // EXPLORE_EVERY
    assert drafter.cost.pace.once < 0.2


def test_a_full_cache_of_the_head_costs_a_draft_and_no_more(target: CpuTarget) -> None:
    drafter = eagle3(target)
    sequence = Fed(drafter, 3)
    hoard: list[int] = []
    drafter._pass.blocks.extend(hoard, 64 * drafter._pass.blocks.free)
    sequence.prompt()
    assert len(drafter.propose([sequence.ask()])[0]) == 1
    drafter._pass.blocks.release(hoard)
    assert len(drafter.propose([sequence.ask()])[0]) > 1


def test_features_that_a_full_cache_does_not_take_are_not_copied_and_end_the_drafts_in_the_end(
    target: CpuTarget,
) -> None:
    draft, kept = eagle3(target).begin(EngineRequest("r", (0,), SamplingParams())), np.zeros((64, 1 << 14), np.float32)
    draft._blocks = BlockPool(1)

    def read_all() -> None:
        for start in range(0, 1 << 20, 64):
            draft.read([0] * (start + 65), start, kept)
            assert all(each is kept for each in draft._waiting)

    with pytest.raises(CacheFull):
        read_all()
    assert 1 << 27 < draft.waiting * kept[0].nbytes < 1 << 29


class Heard(DraftTree):
    """A tree that keeps the candidates of a level."""

    level: Level

    def expand(self, logits: Float32, vocabulary: Vocabulary, sampling: Samplings, *_: object) -> None:
        width = self.shape.width
        output = ModelOutput(logits, NO_CONFIDENCE, vocabulary, sampling)
        self.level = candidates(self.nodes, len(self), self.frontier, output, width)


def proposed_by_level(
    drafter: Eagle3Drafter, draft: HeadDraft, logits: Float32, position: int, text: Sequence[int] = (1,)
) -> tuple[Int64, Float32]:
    """The proposals of a head with such logits for a position, and their shares."""
    tree = Heard(0, draft.state.acceptance, DraftShape(4, 4, 60), Costs(np.ones(61)))
    draft.state.begin(tree, text)
    draft.state.length = position
    draft.state.expand(logits[None].copy())
    return tree.level.tokens[0], tree.level.shares[0]


SAMPLINGS = (
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.0, top_k=5),
    SamplingParams(temperature=1.5, top_p=0.6),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=1.3, top_k=40, top_p=0.9, min_p=0.01),
    SamplingParams(temperature=1.0, presence_penalty=2.0, frequency_penalty=1.5),
    SamplingParams(temperature=1.0, repetition_penalty=3.0),
    SamplingParams(temperature=0.0, repetition_penalty=3.0, presence_penalty=2.0),
    SamplingParams(temperature=1.0, min_tokens=13),
)


@pytest.mark.slow
@given(seed=st.integers(0, 2**63), position=st.integers(2, 2000), known=st.sampled_from(SAMPLINGS))
@example(seed=55_143_981_152_585, position=891, known=SAMPLINGS[0])  # draws a token out of reach
@short_battery
def test_a_head_with_the_targets_logits_and_all_of_the_noise_draws_the_targets_token(
    drafter: Eagle3Drafter, seed: int, position: int, known: SamplingParams
) -> None:
    rng, ids = np.random.default_rng(seed), drafter._pass.vocabulary.target_ids
    end, *others = rng.permutation(ids)[:39].tolist()
    prompt, output = others[:30], [*others[30:], *others[34:]]  # some of it twice
    sampling = replace(known, seed=seed, stop_token_ids=(end,))
    draft = drafter.begin(EngineRequest("r", tuple(prompt), sampling, choice=2, method="eagle3"))
    assert isinstance(draft, HeadDraft)
    draft.state.sampling["noise"] = 1.0
    own_logits = rng.standard_normal(len(ids)).astype(np.float32) * 2
    own_logits[drafter._pass.vocabulary.draft_ids[output]] += 4.0
    own_logits[drafter._pass.vocabulary.draft_ids[end]] = 20.0 if sampling.min_tokens else -20.0
    logits = np.full(384, -100.0, np.float32)
    logits[ids] = own_logits
    sampler = Sampler(sampling, 2, prompt, frozenset((end, *drafter._ends)))
    for token in output:
        sampler.accept(token)
    tokens, shares = proposed_by_level(drafter, draft, own_logits, position, [*prompt, *output])
    drawn, processed = sampler.sample(logits, position), sampler._processors.apply(logits)
    assume(processed[drawn] >= processed.max() - _REACH * known.temperature)  # others get no noise of the head
    assert tokens[0] == drawn
    assert 0.0 < shares.sum() <= 1.0 + 1e-6


VOCAB = 8


class Signpost(TableTarget):
    """After token t comes t + 1; the streams after some layers point at t + 2, which a head must propose."""

    def __init__(self, *telling: int) -> None:
        table = np.zeros((VOCAB, VOCAB), np.float32)
        table[np.arange(VOCAB), (np.arange(VOCAB) + 1) % VOCAB] = 5.0
        super().__init__(table)
        self.config = replace(self.config, hidden_size=VOCAB, layers=8)
        self._telling = telling

    def embed(self, tokens: np.ndarray) -> np.ndarray:
        return np.eye(VOCAB, dtype=np.float32)[tokens]

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        pointing = np.eye(VOCAB, dtype=np.float32)[(rows.tokens + 2) % VOCAB]
        streams = [pointing if layer in self._telling else np.zeros_like(pointing) for layer in feature_layers]
        logits = super().forward(rows).logits
        return PassOutput(logits, np.concatenate(streams, axis=1) if streams else np.empty((len(rows), 0), np.float32))


def passing_through(target: Signpost, layers: tuple[int, ...], others: tuple[tuple[int, ...], ...]) -> Head:
    """A head whose drafts come from its streams: only `fc` and the output have an effect."""
    config = head_config(target.config, feature_layers=layers, draft_vocab_size=VOCAB)
    tensors = {name: torch.zeros(shape) for name, shape in head_shapes(config).items()}
    tensors = {name: t + 1.0 if len(t.shape) == 1 else t for name, t in tensors.items()}
    tensors["fc.weight"] = torch.cat([torch.eye(VOCAB)] * len(layers), dim=1)
    tensors["lm_head.weight"] = torch.eye(VOCAB)
    return Head("safeailab", config, {name: t.numpy() for name, t in tensors.items()}, np.arange(VOCAB), others)


@pytest.mark.slow
@pytest.mark.parametrize("telling", [2, 1, 7])
def test_the_reading_that_is_right_is_taken(telling: int, caplog: pytest.LogCaptureFixture) -> None:
    target = Signpost(telling)
    head = passing_through(target, (2, 4, 6), ((1, 3, 5), (3, 5, 7)))
    assert confirm_layers(head, target, [1, 2, 3]).config.feature_layers[0 if telling < 3 else -1] == telling
    assert bool(caplog.records) == (telling != 2)
    assert target.blocks.used == 0
