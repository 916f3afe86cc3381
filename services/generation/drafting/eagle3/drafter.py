"""EAGLE-3 as a method: one head drafts for all sequences that ask, a step of all their trees at a time."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np

from services.generation.drafting.eagle3 import copying
from services.generation.drafting.eagle3.children import Children, Float32, Int32
from services.generation.drafting.eagle3.confidence import COUNTS, Confidence
from services.generation.drafting.eagle3.copying import Copies
from services.generation.drafting.eagle3.coupling import Coupling
from services.generation.drafting.eagle3.draft import Eagle3Draft
from services.generation.drafting.eagle3.growing import DEEPEST, Int64
from services.generation.drafting.eagle3.growth import Forest, Prices, worth_starting
from services.generation.drafting.eagle3.head import Head
from services.generation.drafting.eagle3.head_pass import HeadPass
from services.generation.drafting.eagle3.rounds import ASKED, Growing, Places, Sampling, Trees, advance, children
from services.generation.drafting.eagle3.shape import DraftShape
from services.generation.drafting.lookahead import LookaheadShape
from services.generation.engine.cost import MARGIN, PassCost
from services.generation.engine.drafter import Ask, Drafter
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sampling.processors import LogitsProcessors, end_ids
from services.generation.engine.tree import TokenTree
from services.generation.target.errors import CacheFull
from services.generation.target.rows import Rows, RowsBuilder
from services.generation.target.target import Target

_LOOK = 32  # passes, in one of which one sequence gets a draft even if none has paid, to notice when they do again
_SPARE_BLOCKS = 128  # of the head's cache: draft entries take up to two blocks a sequence beyond its tokens
_FAINT = 0.05  # chance from which a copy is shown to the head, which can tell that it holds
_TWICE = 2.0  # the head rests where copies promise so many times what it could: they err more than it does
_BANDS = (0.0, 0.4, 0.85)  # temperatures up to which acceptance is counted together
_TIMED_ROWS = (1, 2, 4, 8)
_TIMED_DEPTH = 3  # steps among which a timed draft shares what it needs but once: about as many as most drafts take
_ROUNDS = 12
_FREE = Prices(token=1.0, row=0.0, step=0.0, step_row=0.0)


class Eagle3Drafter(Drafter):
    """`Drafter` by one head on one target. Used by the engine's thread.

    `coupled` draws with the sampler's own noise at temperatures above 0 (`Coupling`); without it the head proposes what
    it holds likeliest, whatever the noise will be. With `copies`, what followed the same words before in the sequence
    itself is drafted too, as lookahead does it, and the head rests where that promises more than it could. Sequences
    share the measured acceptance of head and copies, never text.
    """

    def __init__(
        self, head: Head, target: Target, cost: PassCost, *, coupled: bool = True, copies: bool = False
    ) -> None:
        self.head, self.shape = head, DraftShape.for_device(cost)
        self.feature_layers = head.config.feature_layers
        blocks, length = target.blocks.total + _SPARE_BLOCKS, target.config.context_length
        self._pass = HeadPass(head, target.embed, blocks, length, threads=target.threads)
        self._asked = 0
        self._couplings = [Coupling() if coupled else None for _ in range(len(_BANDS) + 1)]
        self._guesses = LookaheadShape.for_device(cost).guesses if copies else 0
        self._copied = np.zeros((2, *copying.COUNTS))  # greedy text repeats itself more than sampled text
        self._ends = target.config.eos_token_ids
        self._counts = np.zeros((len(_BANDS) + 1, *COUNTS))
        self.step_cost = self._time_steps()

    def begin(self, request: EngineRequest) -> Eagle3Draft:
        sampling = request.sampling
        copied = self._copied[int(sampling.temperature > 0.0)]
        copies = Copies(copied, self._guesses) if self._guesses else None
        band = bisect_left(_BANDS, sampling.temperature)
        shape = self.shape.for_request(request)
        return Eagle3Draft(
            request,
            shape,
            Confidence(self._counts[band]),
            self._couplings[band],
            band,
            self._pass,
            self._store,
            copies,
            LogitsProcessors(sampling, request.prompt, end_ids(sampling, self._ends), self._pass.vocabulary.draft_ids),
        )

    def propose(self, asks: Sequence[Ask]) -> list[TokenTree]:
        self._asked += 1
        for ask in asks:
            _copy(ask)
        shapes = [_within(ask) for ask in asks]
        prices = [self._prices(ask, len(asks)) for ask in asks]
        paying = [i for i, ask in enumerate(asks) if self._pays(ask, shapes[i], prices[i])]
        growing = [i for i in self._looked_at(paying, asks) if self._ready(asks[i], shapes[i])]
        trees = [
            TokenTree.root(ask.tokens[-1]) if i in growing else _copied(ask, shapes[i]) for i, ask in enumerate(asks)
        ]
        if not growing:
            return trees
        drafts = [_draft(asks[i]) for i in growing]
        forest = Forest(len(growing), _covering([shapes[i] for i in growing]), copying.MOST)
        for line, (i, draft) in enumerate(zip(growing, drafts, strict=True)):
            draft.processors.follow(asks[i].tokens)
            draft.growth = forest.plant(line, shapes[i], draft.confidence, prices[i], asks[i].tokens[-1])
            if draft.copies is not None:
                draft.growth.graft(*draft.copies.candidates)
        self._grow(forest, drafts)
        for i, draft in zip(growing, drafts, strict=True):
            assert draft.growth is not None
            trees[i] = draft.growth.tree()
        return trees

    def _prices(self, ask: Ask, together: int) -> Prices:
        budget, step = ask.budget, self.step_cost
        return Prices(budget.token_seconds, MARGIN * budget.row_seconds, step.fixed / together, step.row)

    def _pays(self, ask: Ask, shape: DraftShape, prices: Prices) -> bool:
        """Whether a draft of the head's should gain more than it costs."""
        draft = _draft(ask)
        beside = 0.0 if draft.copies is None else draft.copies.expected / _TWICE
        return worth_starting(shape, draft.confidence, prices, beside)

    def _looked_at(self, paying: list[int], asks: Sequence[Ask]) -> list[int]:
        """Those and, now and then, one of the others: the one that has least to read."""
        others = [i for i in range(len(asks)) if i not in paying]
        if self._asked % _LOOK or not others:
            return paying
        return [*paying, min(others, key=lambda i: _draft(asks[i]).waiting)]

    def _ready(self, ask: Ask, shape: DraftShape) -> bool:
        """Whether the head can draft: not where nothing was computed yet, or its cache is full.

        Raises ValueError where features were left out.
        """
        draft = _draft(ask)
        if len(ask.tokens) == 1:
            return False
        if draft.length + draft.waiting != len(ask.tokens) - 1 or not draft.waiting:
            raise ValueError(f"{draft.length + draft.waiting} features read for {len(ask.tokens)} tokens")
        try:
            draft.settle()
            self._pass.blocks.extend(draft.table, len(ask.tokens) + shape.depth * shape.width)
        except CacheFull:
            return False
        return True

    def _store(self, draft: Eagle3Draft, tokens: list[int], features: Float32) -> None:
        """Compute the entries of a prompt as it comes: their keys and values."""
        self._pass.blocks.extend(draft.table, draft.length + len(tokens))
        entries = RowsBuilder()
        entries.add_chunk(draft.table, draft.length, tokens, False)
        self._pass.read(entries.build(), features)

    def _grow(self, forest: Forest, drafts: list[Eagle3Draft]) -> None:
        """Compute the entries of committed tokens, then step over the frontiers of all trees, until none wants more."""
        entries = RowsBuilder()
        for draft in drafts:
            entries.add_chunk(draft.table, draft.length, draft.tokens, True)
        waiting = [draft.features() for draft in drafts]
        features = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
        for draft in drafts:
            draft.caught_up()
        trees = forest.trees(self._counts, [draft.band for draft in drafts])
        lengths = np.array([draft.length for draft in drafts])
        growing = Growing(trees, lengths, _sampling(drafts), _places(trees))
        firsts = self._steps(growing, drafts, entries.build(), features)
        for draft, (whole, doubted) in zip(drafts, firsts.tolist(), strict=True):
            draft.firsts = whole, doubted

    def _steps(self, growing: Growing, drafts: list[Eagle3Draft], rows: Rows, features: Float32) -> Int64:
        """Grow all trees to their end; what either rule of `coupling` puts first below each root, [lines, 2]."""
        trees, lengths, _, places = growing
        lines, positions = rows.sequences[rows.wanted], rows.positions[rows.wanted]
        out = self._pass.read(rows, features)
        firsts = None
        while True:
            _process(out.logits, drafts, lines)
            found = self._children(out.logits, growing, lines, positions)
            firsts = found.firsts if firsts is None else firsts
            count = advance(trees, lengths, rows.tables, found.tokens, found.shares, places)
            if not count:
                return firsts
            rows = _rows(places, count, rows)
            lines, positions = rows.sequences, rows.positions
            out = self._pass.step(rows, out.states[places.sources[:count]])

    def _children(self, logits: Float32, growing: Growing, lines: Int32, positions: Int32) -> Children:
        columns = growing.trees.frontier.shape[1] + ASKED
        tokens, shares = np.empty((len(lines), columns), np.int64), np.empty((len(lines), columns), np.float32)
        found = Children(tokens, shares, np.empty((len(lines), 2), np.int64))
        children(growing.trees, logits, growing.sampling, lines, positions, self._pass.vocabulary, found)
        return found

    def _time_steps(self, clock: Callable[[], float] = time.perf_counter) -> PassCost:
        """Seconds of a draft step by rows, its part of all that a draft needs included."""
        request = EngineRequest("", (0,), SamplingParams(), k=_TIMED_DEPTH, parameters={"tree_width": 1})
        features = np.zeros((1, len(self.feature_layers) * self.head.config.target_hidden_size), np.float32)
        samples = []
        for count in _TIMED_ROWS:
            drafts = [self.begin(request) for _ in range(count)]
            fastest = np.inf
            for _ in range(_ROUNDS):
                forest = Forest(count, drafts[0].shape, 0)
                for line, draft in enumerate(drafts):
                    draft.read([0, 0], 0, features)
                    self._pass.blocks.extend(draft.table, 2 + draft.shape.depth)
                    forest.plant(line, draft.shape, Confidence(), _FREE, 0)
                started = clock()
                self._grow(forest, drafts)
                fastest = min(fastest, (clock() - started) / drafts[0].shape.depth)
                for draft in drafts:
                    draft.release()
            samples.append((count, fastest))
        return PassCost.fit(samples)


def _draft(ask: Ask) -> Eagle3Draft:
    assert isinstance(ask.draft, Eagle3Draft)
    return ask.draft


def _sampling(drafts: list[Eagle3Draft]) -> Sampling:
    return Sampling(
        np.array([draft.temperature for draft in drafts]), np.array([draft.seed for draft in drafts], np.uint64),
        np.array([draft.choice for draft in drafts], np.int32),
        np.array([draft.rule for draft in drafts], np.int32), np.array([draft.cuts for draft in drafts]),
    )  # fmt: skip


def _process(logits: Float32, drafts: list[Eagle3Draft], lines: Int32) -> None:
    """As the target's logits are before its sampler draws. What a draft itself has said so far is left out."""
    for line, draft in enumerate(drafts):
        if not draft.processors.idle:
            own = lines == line
            logits[own] = draft.processors.apply(logits[own])


def _copy(ask: Ask) -> None:
    copies = _draft(ask).copies
    if copies is not None:
        copies.find(ask.tokens, ask.budget.depth, _FAINT, _least(ask))


def _copied(ask: Ask, shape: DraftShape) -> TokenTree:
    """Copies alone, where the head says nothing."""
    copies = _draft(ask).copies
    return TokenTree.root(ask.tokens[-1]) if copies is None else copies.tree(_least(ask), shape.tree_tokens)


def _least(ask: Ask) -> float:
    """The chance from which a copy pays without the head's word."""
    return ask.budget.breakeven


def _within(ask: Ask) -> DraftShape:
    shape, budget = _draft(ask).shape, ask.budget
    return DraftShape(min(shape.depth, budget.depth), shape.width, min(shape.tree_tokens, budget.nodes))


def _covering(shapes: list[DraftShape]) -> DraftShape:
    """Bounds that hold all of these."""
    return DraftShape(
        max(shape.depth for shape in shapes), max(s.width for s in shapes), max(s.tree_tokens for s in shapes)
    )


def _places(trees: Trees) -> Places:
    """Room for the rows of a step over all frontiers."""
    rows, deepest = trees.frontier.size, int(trees.bounds[:, DEEPEST].max())
    lines = np.empty((4, rows), np.int32)
    return Places(
        np.empty(rows, np.int64), lines[0], lines[1], lines[2], lines[3], np.empty(rows + 1, np.int32),
        np.empty(rows * deepest, np.int32), np.empty(rows, np.int64),
    )  # fmt: skip


def _rows(places: Places, count: int, before: Rows) -> Rows:
    return Rows(
        tokens=places.tokens[:count],
        positions=places.positions[:count],
        slots=places.slots[:count],
        sequences=places.lines[:count],
        contiguous=places.contiguous[:count],
        branch_starts=places.branch_starts[: count + 1],
        branches=places.branches[: places.branch_starts[count]],
        tables=before.tables,
        adapter_slots=None,
        wanted=np.arange(count, dtype=np.int32),
    )
