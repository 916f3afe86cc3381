"""EAGLE-3 as a method: one head drafts for all sequences that ask, a level of all their trees at a time.

After Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test" (2025).
Beyond the paper, copies of the sequence's own text are candidates too, with the probabilities that the head gives them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from services.generation.drafting.acceptance import Acceptance, Int64
from services.generation.drafting.draft_tree.candidates import Candidates, Float32, Samplings, candidates
from services.generation.drafting.draft_tree.draft_tree import DraftTree
from services.generation.drafting.draft_tree.expansion import Speaking, expand
from services.generation.drafting.draft_tree.nodes import Costs
from services.generation.drafting.draft_tree.shape import DraftShape
from services.generation.drafting.eagle3.draft import Eagle3Draft
from services.generation.drafting.eagle3.head import Head
from services.generation.drafting.eagle3.head_pass import HeadPass
from services.generation.drafting.lookahead import LookaheadShape
from services.generation.engine.cost import PassCost, StepCost
from services.generation.engine.drafter import Ask, Drafter
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.tree import TokenTree
from services.generation.target.errors import CacheFull
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target

_SPARE_BLOCKS = 128  # of the head's cache: draft entries take up to two blocks a sequence beyond its tokens
_FAINT = 0.05  # probability from which the head is asked for a copy's
_TIMED_ROWS = (1, 2, 4, 8)
_TIMED_DEPTH = 3  # levels of a typical draft: its fixed costs are divided by these
_ROUNDS = 12
_ARITHMETIC = "int8"  # of the head: half of what a step reads in bfloat16, and its drafts hold as often


class Eagle3Drafter(Drafter):
    """`Drafter` by one head on one target. Used by the engine's thread.

    `coupled` draws with the sampler's own noise at temperatures above 0 (`candidates`); without it the head proposes
    its likeliest tokens. With `copies`, text that followed the same words earlier in the sequence is drafted too.
    """

    def __init__(
        self, head: Head, target: Target, cost: PassCost, *, coupled: bool = True, copies: bool = False
    ) -> None:
        self.head, self.shape = head, DraftShape.for_device(cost)
        self.feature_layers = head.config.feature_layers
        blocks, length = target.blocks.total + _SPARE_BLOCKS, target.config.context_length
        self._pass = HeadPass(head, target.embed, blocks, length, threads=target.threads, arithmetic=_ARITHMETIC)
        self._coupled, self._guesses = coupled, LookaheadShape.for_device(cost).guesses if copies else 0
        self._acceptance, self._ends = Acceptance(), target.config.eos_token_ids
        self.step_cost = self._time_steps()

    def begin(self, request: EngineRequest) -> Eagle3Draft:
        acceptance = self._acceptance.begin(request)
        speaking = Speaking.of(request, acceptance, self._ends, self._pass.vocabulary, coupled=self._coupled)
        return Eagle3Draft(request, self.shape.for_request(request), speaking, self._pass, self._store)

    def propose(self, asks: Sequence[Ask]) -> list[TokenTree]:
        trees = [self._begun(ask, len(asks)) for ask in asks]
        expanding = [_draft(ask) for ask, tree in zip(asks, trees, strict=True) if self._expands(ask, tree)]
        if expanding:
            self._expand(expanding)
        return [tree.token_tree() for tree in trees]

    def _begun(self, ask: Ask, together: int) -> DraftTree:
        """A tree of copies, in flight."""
        draft, budget, step = _draft(ask), ask.budget, self.step_cost
        costs = Costs(budget.shares, step.fixed / together, step.row)
        tree = DraftTree(ask.tokens[-1], draft.speaking.acceptance, draft.shape.within(budget), costs)
        tree.add(draft.prediction.copies(ask.tokens), budget)
        if self._guesses:
            draft.text.extend(ask.tokens)
            copies = draft.text.copies(2 * self._guesses)
            tree.add([copies], budget, least=min(_FAINT, budget.breakeven), most=self._guesses)
        draft.speaking.begin(tree, ask.tokens)
        return tree

    def _expands(self, ask: Ask, tree: DraftTree) -> bool:
        """Whether the head drafts: it can, and is expected to gain more than it costs."""
        draft = _draft(ask)
        if not tree.worth_expanding():
            draft.speaking.acceptance.fade()
            return False
        return self._ready(draft, ask.tokens)

    def _ready(self, draft: Eagle3Draft, tokens: list[int]) -> bool:
        """Whether the head has a feature to begin with, and room in its cache.

        Raises ValueError where features were left out.
        """
        if len(tokens) == 1:
            return False
        if draft.length + draft.waiting != len(tokens) - 1 or not draft.waiting:
            raise ValueError(f"{draft.length + draft.waiting} features read for {len(tokens)} tokens")
        try:
            draft.settle()
            self._pass.blocks.extend(draft.table, len(tokens) + draft.shape.depth * draft.shape.width)
        except CacheFull:
            return False
        return True

    def _store(self, draft: Eagle3Draft, count: int) -> None:
        """Compute keys and values of the first waiting features."""
        self._pass.blocks.extend(draft.table, draft.length + count)
        entries = RowsBuilder()
        entries.add_chunk(draft.table, draft.length, draft.tokens[:count], False)
        self._pass.read(entries.build(), draft.features()[:count])

    def _expand(self, drafts: list[Eagle3Draft]) -> None:
        """Compute the entries of committed tokens, then those of the frontiers of all trees, until none has one."""
        rows = RowsBuilder()
        for draft in drafts:
            rows.add_chunk(draft.table, draft.length, draft.tokens, True)
        features = np.concatenate([draft.features() for draft in drafts])
        for draft in drafts:
            draft.caught_up()
        out = self._pass.read(rows.build(), features)
        while True:
            expand([draft.speaking for draft in drafts], out.logits, self._candidates)
            rows, sources, first = RowsBuilder(), list[int](), 0
            for draft in drafts:
                before = draft.computed
                sources += [first + source for source in draft.add_frontier(rows)]
                first += before
            if not len(rows):
                return
            drafts = [draft for draft in drafts if draft.computed]
            out = self._pass.step(rows.build(), out.states[sources])

    def _candidates(self, logits: Float32, samplings: Samplings, asked: Int64, width: int) -> Candidates:
        return candidates(logits, self._pass.vocabulary, samplings, asked, width)

    def _time_steps(self, clock: Callable[[], float] = time.perf_counter) -> StepCost:
        """Seconds of a draft step by rows, with its part of a draft's fixed costs."""
        request = EngineRequest("", (0,), SamplingParams(), k=_TIMED_DEPTH, parameters={"tree_width": 1})
        features = np.zeros((1, len(self.feature_layers) * self.head.config.target_hidden_size), np.float32)
        samples = []
        for count in _TIMED_ROWS:
            drafts = [self.begin(request) for _ in range(count)]
            fastest = np.inf
            for _ in range(_ROUNDS):
                for draft in drafts:
                    draft.read([0, 0], 0, features)
                    self._pass.blocks.extend(draft.table, 2 + draft.shape.depth)
                    tree = DraftTree(0, draft.speaking.acceptance, draft.shape, Costs(np.ones(2)))
                    draft.speaking.begin(tree, (0, 0))
                started = clock()
                self._expand(drafts)
                fastest = min(fastest, (clock() - started) / _TIMED_DEPTH)
                for draft in drafts:
                    draft.release()
            samples.append((count, fastest))
        return StepCost.fit(samples)


def _draft(ask: Ask) -> Eagle3Draft:
    assert isinstance(ask.draft, Eagle3Draft)
    return ask.draft
