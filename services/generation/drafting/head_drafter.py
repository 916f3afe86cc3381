"""Drafting with a head on the target's own hidden states: what heads of all kinds have in common.

Beyond the papers, copies of the sequence's own text are candidates too, with the probabilities that the head gives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Protocol, TypeVar

import numpy as np

from services.generation.drafting.acceptance import Acceptance
from services.generation.drafting.copies import OwnText
from services.generation.drafting.draft_tree.candidates import DEPTH, HEAD_NOISE, DraftShape, Vocabulary
from services.generation.drafting.draft_tree.draft_tree import DraftModelState, DraftTree
from services.generation.drafting.heads import DraftHead
from services.generation.drafting.lookahead import LookaheadShape
from services.generation.drafting.prediction import Prediction
from services.generation.engine.cost import StepCost
from services.generation.engine.drafter import Draft, Drafter, DraftRequest
from services.generation.engine.economics import Costs, DraftCost
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32
from services.generation.target.blocks import BlockPool
from services.generation.target.errors import CacheFull
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target
from services.generation.target.unread import LogitRows

_FEW = 16  # features that are read together with the next draft
_MOST_WAITING = 1 << 23  # bytes of features that wait for the head's next draft; it may never come
_MOST_REFUSED = 1 << 28  # bytes of features that wait because the head's cache is full

SPARE_BLOCKS = 128
"""Blocks of a head's cache beyond the target's: entries of drafts take up to two a sequence behind its tokens."""

ARITHMETIC = "int8"
"""The arithmetic of heads, whose weights are rounded to 4 bits then: a step reads a third of the bytes of bfloat16.
Chains of four bring 2.18 tokens a pass where 8 bits bring 2.29, and drafts with 4 bits are faster nevertheless.
"""
D = TypeVar("D", bound=Draft)

_SEQUENCES = (1, 8)  # that draft together; a line through both gives the cost of one more
_DEPTH = 4  # tokens of the deeper of two chains, whose difference is the time of a level
_ROUNDS = 6  # of which the median counts


class HeadDraft(Draft):
    """`Draft` of one sequence.

    Entries [0, length) are in the head's cache, computed from features of committed tokens only. Features that were
    read and not computed yet are `waiting`. Entries of drafts lie behind them and are never counted: the next features
    overwrite them, so the cache follows the accepted path.
    """

    def __init__(
        self,
        request: EngineRequest,
        shape: DraftShape,
        state: DraftModelState,
        blocks: BlockPool,
        store: Callable[[HeadDraft, int], None],
    ) -> None:
        """`store(draft, count)` computes the entries of `count` features from `length` on, which have blocks."""
        self.shape, self.state, self.text, self.prediction = shape, state, OwnText(), Prediction(request)
        self.table: list[int] = []
        self.length = 0
        self.tokens: list[int] = []  # that follow the waiting features, one each
        self._waiting: list[Float32] = []
        self._blocks, self._store = blocks, store

    @property
    def tree(self) -> DraftTree | None:
        """The draft tree in flight."""
        return self.state.tree

    @property
    def waiting(self) -> int:
        return len(self.tokens)

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        """Raises ValueError if positions were left out, CacheFull if too much waits for room in the cache."""
        if start == 0 and self.length:
            self.release()
        if start != self.length + self.waiting:
            raise ValueError(f"features from position {start}; expected {self.length + self.waiting}")
        self._waiting.append(features)
        self.tokens += tokens[start + 1 : start + 1 + len(features)]
        waiting_bytes = self.waiting * features.itemsize * features.shape[1]
        if self.waiting > _FEW and waiting_bytes > _MOST_WAITING:
            self._store_all_but_one()
            if waiting_bytes > _MOST_REFUSED and self.waiting > 1:
                raise CacheFull(f"{waiting_bytes} bytes of features wait for room in the head's cache")

    def settle(self) -> None:
        """Read the waiting features, unless they are few: the next draft reads them anyway."""
        if self.waiting > _FEW:
            self._store_all_but_one()

    def _store_all_but_one(self) -> None:
        """The last feature waits: the next draft begins with it. If the cache is full, all go on waiting."""
        try:
            self.reserve(self.length + self.waiting - 1)
        except CacheFull:
            return
        self._store(self, self.waiting - 1)
        last = self.features()[-1:].copy()
        self.length += self.waiting - 1
        self.tokens, self._waiting = self.tokens[-1:], [last]

    def features(self) -> Float32:
        """The features that are waiting, [waiting, layers * hidden]."""
        if len(self._waiting) > 1:
            self._waiting = [np.concatenate(self._waiting)]
        return self._waiting[0]

    def reserve(self, entries: int) -> None:
        """Take blocks for so many entries. Raises CacheFull."""
        self._blocks.extend(self.table, entries)

    def caught_up(self) -> None:
        """The waiting features are in the cache; entries of drafts start behind them."""
        self.length += self.waiting
        self._waiting.clear()
        self.tokens = []

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: LogitRows) -> None:
        self.state.observe(tree.tokens[0], tokens[-len(path) :])

    def release(self) -> None:
        self._blocks.release(self.table)
        self.length = 0
        self._waiting.clear()
        self.tokens, self.state.tree = [], None


class HeadPasses(Protocol):
    """The members of a head's passes that its drafter uses."""

    @property
    def blocks(self) -> BlockPool: ...
    @property
    def vocabulary(self) -> Vocabulary: ...


class HeadDrafter(Drafter):
    """`Drafter` by one head on one target. Used by the engine's thread. A kind of head computes entries
    and expands trees; it begins with a draft tree of copies in flight for each sequence.
    """

    width = "tree_width"
    """The parameter of requests for the tokens tried below a node."""
    draft_type: type[HeadDraft] = HeadDraft

    def __init__(
        self, head: DraftHead, passes: HeadPasses, target: Target, *, depth: int | None = None, copies: bool = False
    ) -> None:
        """With `copies`, text that followed the same words earlier in the sequence is drafted too. `depth` bounds
        drafts of any request.
        """
        self.feature_layers = head.config.feature_layers
        self._deepest = depth
        self.shape = DraftShape(depth=min(DEPTH, DEPTH if depth is None else depth))
        self._passes, self._features = passes, len(self.feature_layers) * head.config.target_hidden_size
        self._guesses = LookaheadShape().guesses if copies else 0
        self._acceptance, self._ends = Acceptance(), target.config.eos_token_ids
        self.cost = DraftCost(*time_drafts(self._chains, self.expand, target, self.shape.depth))

    def begin(self, request: EngineRequest) -> HeadDraft:
        acceptance = self._acceptance.begin(request)
        state = DraftModelState.of(request, acceptance, self._ends, self._passes.vocabulary, noise=HEAD_NOISE)
        shape = self.shape.for_request(request, self.width)
        if self._deepest is not None:
            shape = replace(shape, depth=min(shape.depth, self._deepest))
        return self.draft_type(request, shape, state, self._passes.blocks, self._store)

    def propose(self, asks: Sequence[DraftRequest]) -> list[TokenTree]:
        trees = [self._begun(ask, len(asks)) for ask in asks]
        drafting = [_draft(ask) for ask, tree in zip(asks, trees, strict=True) if self._should_expand(ask, tree)]
        if drafting:
            started = time.perf_counter()
            self.expand(drafting)
            steps = max(draft.tree.steps for draft in drafting if draft.tree is not None)
            self.cost.took(time.perf_counter() - started, len(drafting), steps)
        return [tree.token_tree() for tree in trees]

    def _begun(self, ask: DraftRequest, together: int) -> DraftTree:
        """A tree of copies, in flight."""
        draft, budget = _draft(ask), ask.budget
        costs = self.cost.of(budget.pass_cost, together)
        tree = DraftTree(ask.tokens[-1], draft.state.acceptance, draft.shape.within(budget), costs)
        tree.add(draft.prediction.copies(ask.tokens), budget)
        if self._guesses:
            draft.text.extend(ask.tokens)
            tree.add([draft.text.copies(2 * self._guesses)], budget, most=self._guesses)
        draft.state.begin(tree, ask.tokens)
        return tree

    def _should_expand(self, ask: DraftRequest, tree: DraftTree) -> bool:
        """Whether the head drafts: it has a feature to begin with and room in its cache, and is expected to gain more
        than it costs. It seldom drafts nevertheless (`DraftCost.refused`), except beside a prediction, which its tokens
        could cut.

        Raises ValueError if features were left out.
        """
        draft, known = _draft(ask), len(ask.tokens) - 1
        if not tree.worth_expanding():
            tries = ask.budget.breakeven < 1.0 and not draft.state.request.prediction
            if not (tries and self.cost.refused()):
                return False
        if not known:
            return False
        if draft.length + draft.waiting != known:
            raise ValueError(f"{draft.length + draft.waiting} features read for {known + 1} tokens")
        try:
            draft.settle()
            draft.reserve(known + self.entries(draft.shape))
        except CacheFull:
            return False
        return True

    def entries(self, shape: DraftShape) -> int:
        """Entries of a draft, at most."""
        raise NotImplementedError

    def _store(self, draft: HeadDraft, count: int) -> None:
        """Compute keys and values of the first waiting features, which have blocks."""
        raise NotImplementedError

    def expand(self, drafts: Sequence[HeadDraft]) -> None:
        """Compute the entries of committed tokens, then let the head expand the trees in flight."""
        raise NotImplementedError

    def _chains(self, count: int, depth: int) -> list[HeadDraft]:
        """Chains of a depth for sequences of one token, to be timed."""
        request = EngineRequest("", (0,), SamplingParams(), k=depth, parameters={self.width: 1})
        drafts = [self.begin(request) for _ in range(count)]
        for draft in drafts:
            draft.read([0, 0], 0, np.zeros((1, self._features), np.float32))
            draft.reserve(1 + self.entries(draft.shape))
            draft.state.begin(DraftTree(0, draft.state.acceptance, draft.shape, Costs(np.ones(2))), (0, 0))
        return drafts


def _draft(ask: DraftRequest) -> HeadDraft:
    assert isinstance(ask.draft, HeadDraft)
    return ask.draft


def time_drafts(
    chains: Callable[[int, int], Sequence[D]],
    expand: Callable[[Sequence[D]], None],
    target: Target,
    deepest: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[StepCost, StepCost]:
    """Seconds of a draft at any depth, and of each of its levels, by sequences that draft together.

    `chains(sequences, depth)` begins chains that `expand` can draft. A pass of the target precedes each draft, as in
    use: it leaves little of the head in the processor's caches.
    """
    depth, table, rows = min(_DEPTH, deepest), list[int](), RowsBuilder()
    target.blocks.extend(table, 1)
    rows.add_chunk(table, 0, [0], True)
    one = rows.build()

    def seconds(count: int, levels: int) -> float:
        found = []
        for _ in range(_ROUNDS):
            drafts = chains(count, levels)
            target.forward(one)
            started = clock()
            expand(drafts)
            found.append(clock() - started)
            for draft in drafts:
                draft.release()
        return median(found)

    once, each = [], []
    try:
        for count in _SEQUENCES:
            shallow, deep = seconds(count, 1), seconds(count, depth)
            # a level that seemed to take no time would have no share in later measurements
            level = max((deep - shallow) / max(depth - 1, 1), 0.1 * shallow)
            once.append((count, max(shallow - level, 0.01 * shallow)))
            each.append((count, level))
    finally:
        target.blocks.release(table)
    return StepCost.fit(once), StepCost.fit(each)
