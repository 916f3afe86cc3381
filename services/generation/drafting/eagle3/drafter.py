"""EAGLE-3 as a method: one head drafts for all sequences that ask, a step of all their trees at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.eagle3.confidence import Confidence
from services.generation.drafting.eagle3.draft import Eagle3Draft
from services.generation.drafting.eagle3.entries import Entries
from services.generation.drafting.eagle3.growth import Growth, Prices
from services.generation.drafting.eagle3.head import Head
from services.generation.drafting.eagle3.head_pass import HeadOutput, HeadPass
from services.generation.drafting.eagle3.kernels import best_children
from services.generation.drafting.eagle3.shape import DraftShape
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Ask
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.tree import TokenTree
from services.generation.target.errors import CacheFull
from services.generation.target.kernels import Float32, Int32
from services.generation.target.target import Target

_LOOK = 8  # passes, of which one is drafted for where drafts have not paid, to notice when they do again
_SPARE_BLOCKS = 128  # of the head's cache: draft entries take up to two blocks a sequence beyond its tokens
_TWICE = 2.0  # the head rests where copies promise so many times what it could: they err more than it does
_TIMED_ROWS = (1, 2, 4, 8)
_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class _Step:
    """What the head says below some nodes: tokens and shares [rows, width], and the state to go on from [rows, H]."""

    tokens: NDArray[np.int64]
    shares: Float32
    state: Float32


class Eagle3Drafter:
    """`FeatureDrafter` by one head on one target. Used by the engine's thread.

    `coupled` draws with the sampler's own noise at temperatures above 0; without it the head proposes what it holds
    likeliest, whatever the noise will be. With `copies`, what followed the same words before in the sequence itself is
    drafted too, as lookahead does it, and the head rests where that promises more than it could. Sequences share the
    measured acceptance of head and copies, never text.
    """

    def __init__(
        self, head: Head, target: Target, cost: PassCost, *, coupled: bool = True, copies: bool = False
    ) -> None:
        self.head, self.shape = head, DraftShape.for_device(cost)
        self.feature_layers = head.config.feature_layers
        self._pass = HeadPass(head, target.embed, target.blocks.total + _SPARE_BLOCKS, target.config.context_length)
        self._coupled, self._cost = coupled, cost
        self._copies = LookaheadDrafter(cost) if copies else None
        self._confidence = {sampled: Confidence() for sampled in (False, True)}
        self._draft_ids = np.full(head.config.vocab_size, -1, np.int64)
        self._draft_ids[head.target_ids] = np.arange(len(head.target_ids))
        self.step_cost = self._time_steps()

    def begin(self, request: EngineRequest) -> Eagle3Draft:
        copies = None if self._copies is None else self._copies.begin(replace(request, window=0))
        return Eagle3Draft(request, self.shape.for_request(request), self._pass, self._catch_up, copies)

    def propose_all(self, asks: Sequence[Ask]) -> list[TokenTree]:
        trees = [self._copied(ask) for ask in asks]
        growing = {
            i: grown for i, ask in enumerate(asks) if (grown := self._start(ask, trees[i], len(asks))) is not None
        }
        if not growing:
            return trees
        drafts = {i: _draft(asks[i]) for i in growing}
        step = self._extend(list(drafts.values()))
        self._grow(list(growing.values()), list(drafts.values()), step)
        for i, growth in growing.items():
            drafts[i].growth = growth
            trees[i] = growth.tree()
        return trees

    def _copied(self, ask: Ask) -> TokenTree:
        copies = _draft(ask).copies
        return TokenTree.root(ask.tokens[-1]) if copies is None else copies.propose(ask.tokens, ask.budget)

    def _start(self, ask: Ask, copied: TokenTree, together: int) -> Growth | None:
        """A tree to grow, or None where no draft would pay, nothing was computed yet, or the head's cache is full."""
        draft, budget = _draft(ask), ask.budget
        if len(ask.tokens) == 1:
            return None
        draft.passes += 1
        shape = DraftShape(
            min(draft.shape.depth, budget.depth), draft.shape.width, min(draft.shape.tree_tokens, budget.nodes)
        )
        prices = Prices(
            token=self._cost.row / budget.breakeven,
            row=self._cost.row,
            step=self.step_cost.fixed / together,
            step_row=self.step_cost.row,
        )
        growth = Growth(shape, self._confidence[draft.temperature > 0.0], prices, [ask.tokens[-1]])
        beside = 0.0 if draft.copies is None else draft.copies.expected / _TWICE
        if not growth.worth_starting(beside) and draft.passes % _LOOK:
            return None
        if draft.copies is not None:
            growth.graft(copied, draft.copies.chances)
        if draft.length + draft.waiting != len(ask.tokens) - 1 or not draft.waiting:
            raise ValueError(f"{draft.length + draft.waiting} features read for {len(ask.tokens)} tokens")
        try:
            self._pass.blocks.extend(draft.table, len(ask.tokens) + shape.depth * shape.width)
        except CacheFull:
            return None
        return growth

    def _catch_up(self, draft: Eagle3Draft) -> None:
        """Compute a prompt's entries as they come."""
        self._pass.blocks.extend(draft.table, draft.length + draft.waiting)
        entries = Entries([draft])
        entries.add_waiting(0, draft, wanted=False)
        self._run(entries, self._pass.fuse(draft.features()))
        draft.caught_up()

    def _extend(self, drafts: list[Eagle3Draft]) -> _Step:
        """Compute the entries of committed tokens; the last of each sequence says what follows its root."""
        entries = Entries(drafts)
        for line, draft in enumerate(drafts):
            entries.add_waiting(line, draft, wanted=True)
        out, positions = self._run(entries, self._pass.fuse(np.concatenate([draft.features() for draft in drafts])))
        for draft in drafts:
            draft.caught_up()
        return self._children(out.logits, drafts, positions, out.state)

    def _grow(self, growing: list[Growth], drafts: list[Eagle3Draft], step: _Step) -> None:
        """Steps of the head over the frontiers of all trees, until none wants another."""
        entries = Entries(drafts)
        while True:
            entries.clear()
            sources: list[int] = []
            owners: list[Eagle3Draft] = []
            first = 0
            for line, (growth, draft) in enumerate(zip(growing, drafts, strict=True)):
                expanded, width = len(growth.frontier), growth.shape.width
                if not expanded:
                    continue
                rows = slice(first, first + expanded)
                growth.take(step.tokens[rows, :width].tolist(), step.shares[rows, :width].tolist())
                for node in growth.frontier:
                    entries.add_node(line, draft, node, growth.parents[node], growth.tokens[node], growth.depths[node])
                sources += [first + source for source in growth.sources]
                owners += [draft] * len(growth.frontier)
                first += expanded
            if not owners:
                return
            out, positions = self._run(entries, step.state[sources])
            step = self._children(out.logits, owners, positions, out.state)

    def _run(self, entries: Entries, feature: Float32) -> tuple[HeadOutput, Int32]:
        """Also the positions of the tokens that wanted entries predict: entry i read token i + 1."""
        rows = entries.rows()
        out = self._pass.run(rows, feature)
        return out, rows.positions[rows.wanted] + np.int32(2)

    def _children(self, logits: Float32, owners: list[Eagle3Draft], positions: Int32, state: Float32) -> _Step:
        """The likeliest children of each row; `owners` are the rows' sequences."""
        for row, draft in enumerate(owners):
            for token, bias in draft.biases:
                if self._draft_ids[token] >= 0:
                    logits[row, self._draft_ids[token]] += np.float32(bias)
        width = max(draft.shape.width for draft in owners)
        tokens = np.empty((len(owners), width), np.int64)
        shares = np.empty((len(owners), width), np.float32)
        best_children(
            logits, self.head.target_ids, np.array([draft.temperature for draft in owners], np.float64),
            np.array([draft.seed for draft in owners], np.uint64), np.array([d.choice for d in owners], np.int32),
            positions, np.full(len(owners), self._coupled), tokens, shares,
        )  # fmt: skip
        return _Step(tokens, shares, state)

    def _time_steps(self, clock: Callable[[], float] = time.perf_counter) -> PassCost:
        """Seconds of a draft step by rows, the choice of children included."""
        draft = self.begin(EngineRequest("", (0,), SamplingParams(), tree_width=1))
        self._pass.blocks.extend(draft.table, max(_TIMED_ROWS) + 1)
        samples = []
        for count in _TIMED_ROWS:
            state = np.zeros((count, self.head.config.hidden_size), np.float32)
            fastest = np.inf
            for _ in range(_ROUNDS):
                started = clock()
                draft.caught_up()
                entries = Entries([draft])
                for node in range(1, count + 1):
                    entries.add_node(0, draft, node, 0, 0, 1)
                out, positions = self._run(entries, state)
                self._children(out.logits, [draft] * count, positions, out.state)
                fastest = min(fastest, clock() - started)
            samples.append((count, fastest))
        draft.release()
        return PassCost.fit(samples)


def _draft(ask: Ask) -> Eagle3Draft:
    assert isinstance(ask.draft, Eagle3Draft)
    return ask.draft
