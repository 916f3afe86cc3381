"""Block drafters as a method: one pass of a head proposes what may stand at the next positions, all at once.

After DFlash and DSpark (arXiv 2607.05147). Beyond the papers, the positions' tokens are a tree, which the costs of rows
cut, and copies of the sequence's own text are candidates too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from services.generation.drafting.acceptance import Acceptance
from services.generation.drafting.block.block_checkpoint import KNOWN_BY, BlockHead, is_block, load_block_head
from services.generation.drafting.block.block_pass import BlockPass
from services.generation.drafting.copies import OwnText
from services.generation.drafting.draft_tree.candidates import HEAD_NOISE, DraftShape, Samplings, candidates
from services.generation.drafting.draft_tree.draft_tree import DraftTree, Speaking, expand
from services.generation.drafting.draft_tree.nodes import Costs, Level
from services.generation.drafting.heads import HeadKind
from services.generation.drafting.lookahead import LookaheadShape
from services.generation.drafting.method_spec import MethodSpec, Parameter, Parts
from services.generation.drafting.prediction import Prediction
from services.generation.engine.cost import PassCost, StepCost
from services.generation.engine.drafter import Ask, Draft, Drafter
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32, Int64
from services.generation.target.errors import CacheFull
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target

_MOST_WAITING = 1 << 23  # bytes of features that wait for the next draft; it may never come


class BlockDraft(Draft):
    """`Draft` of one sequence. The head's cache holds `length` committed tokens; features of further ones wait."""

    def __init__(
        self,
        request: EngineRequest,
        shape: DraftShape,
        speaking: Speaking,
        head: BlockPass,
        store: Callable[[Sequence[BlockDraft]], None],
    ) -> None:
        """`store` takes the waiting features of drafts into the cache."""
        self.shape, self.speaking, self.text, self.prediction = shape, speaking, OwnText(), Prediction(request)
        self.table: list[int] = []
        self.length = 0
        self._waiting: list[Float32] = []
        self._head, self._store = head, store

    @property
    def tree(self) -> DraftTree | None:
        """In flight."""
        return self.speaking.tree

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting))

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        """Raises ValueError if positions were left out."""
        if start == 0 and self.length:
            self.release()
        if start != self.length + self.waiting:
            raise ValueError(f"features from position {start}; expected {self.length + self.waiting}")
        self._waiting.append(features)
        if self.waiting * features.itemsize * features.shape[1] > _MOST_WAITING:
            try:
                self._head.blocks.extend(self.table, self.length + self.waiting)
                self._store([self])
                return
            except CacheFull:
                pass  # all go on waiting
        self._waiting[-1] = features.copy()

    def taken(self) -> Float32:
        """The waiting features, [waiting, layers * hidden], which are in the cache from now on."""
        features = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        self.length += len(features)
        self._waiting.clear()
        return features

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: Float32) -> None:
        self.speaking.observe(tree.tokens[0], tokens[-len(path) :])

    def release(self) -> None:
        self._head.blocks.release(self.table)
        self.length, self.speaking.tree = 0, None
        self._waiting.clear()


_SPARE_BLOCKS = 128  # of the head's cache: blocks of drafts take up to two a sequence beyond its tokens
_FAINT = 0.05  # probability from which the head is asked for a copy's
_TIMED_DRAFTS = (1, 2, 4)
_ROUNDS = 8
_ARITHMETIC = "int8"  # of the head, as of EAGLE-3's


class BlockDrafter(Drafter):
    """`Drafter` by one head on one target. Used by the engine's thread.

    At temperatures above 0 it draws with so much of the sampler's own `noise` (`candidates`). With `copies`, text that
    followed the same words earlier in the sequence is drafted too.
    """

    def __init__(
        self, head: BlockHead, target: Target, cost: PassCost, *, noise: float = HEAD_NOISE, copies: bool = False
    ) -> None:
        config = head.config
        shape = DraftShape.for_device(cost)
        self.head, self.shape = head, replace(shape, depth=min(shape.depth, config.drafts))
        self.feature_layers = config.feature_layers
        blocks, length = target.blocks.total + _SPARE_BLOCKS, target.config.context_length
        self._pass = BlockPass(head, target, blocks, length, arithmetic=_ARITHMETIC)
        self._noise, self._guesses = noise, LookaheadShape.for_device(cost).guesses if copies else 0
        self._acceptance, self._ends = Acceptance(), target.config.eos_token_ids
        self.draft_cost, self.level_cost = self._time_drafts()

    def begin(self, request: EngineRequest) -> BlockDraft:
        acceptance = self._acceptance.begin(request)
        speaking = Speaking.of(request, acceptance, self._ends, self._pass.vocabulary, noise=self._noise)
        shape = self.shape.for_request(request)
        width = request.parameters.get("block_width", shape.width)
        shape = replace(shape, depth=min(shape.depth, self.head.config.drafts), width=width)
        return BlockDraft(request, shape, speaking, self._pass, self._store)

    def propose(self, asks: Sequence[Ask]) -> list[TokenTree]:
        trees = [self._begun(ask, len(asks)) for ask in asks]
        drafting = [_draft(ask) for ask, tree in zip(asks, trees, strict=True) if self._expands(ask, tree)]
        if drafting:
            self._expand(drafting)
        return [tree.token_tree() for tree in trees]

    def _begun(self, ask: Ask, together: int) -> DraftTree:
        """A tree of copies, in flight."""
        draft, budget, once, level = _draft(ask), ask.budget, self.draft_cost, self.level_cost
        costs = Costs(budget.shares, level.fixed / together, level.row, once.fixed / together + once.row)
        tree = DraftTree(ask.tokens[-1], draft.speaking.acceptance, draft.shape.within(budget), costs)
        tree.add(draft.prediction.copies(ask.tokens), budget)
        if self._guesses:
            draft.text.extend(ask.tokens)
            copies = draft.text.copies(2 * self._guesses)
            tree.add([copies], budget, least=min(_FAINT, budget.breakeven), most=self._guesses)
        draft.speaking.begin(tree, ask.tokens)
        return tree

    def _expands(self, ask: Ask, tree: DraftTree) -> bool:
        """Whether the head drafts: it is expected to gain more than it costs, and there is room in its cache.

        Raises ValueError where features were left out.
        """
        draft, known = _draft(ask), len(ask.tokens) - 1
        if not tree.worth_expanding():
            draft.speaking.acceptance.fade()
            return False
        if not known:
            return False
        if draft.length + draft.waiting != known:
            raise ValueError(f"{draft.length + draft.waiting} features read for {known + 1} tokens")
        try:
            self._pass.blocks.extend(draft.table, known + self.head.config.block_size)
        except CacheFull:
            return False
        return True

    def _store(self, drafts: Sequence[BlockDraft]) -> None:
        """Take the waiting features of drafts into the cache."""
        rows, features = RowsBuilder(), []
        for draft in drafts:
            if draft.waiting:
                rows.add_chunk(draft.table, draft.length, [0] * draft.waiting, False)
                features.append(draft.taken())
        if features:
            self._pass.store(rows.build(), np.concatenate(features))

    def _expand(self, drafts: Sequence[BlockDraft]) -> None:
        """One pass over the blocks of all drafts, then the tokens of one position after the other."""
        config, rows = self.head.config, RowsBuilder()
        self._store(drafts)
        masks = [config.mask_token] * (config.block_size - 1)
        for draft in drafts:
            assert draft.tree is not None
            rows.add_block(draft.table, draft.length, [draft.tree.root, *masks], want_first=config.from_first)
        out = self._pass.draft(rows.build())
        logits, states = (x.reshape(len(drafts), config.drafts, -1) for x in (out.logits, out.states))
        for position in range(config.drafts):
            trees = [(number, draft.tree) for number, draft in enumerate(drafts) if draft.tree is not None]
            sources = [number for number, tree in trees for _ in tree.frontier]
            if not sources:
                return
            before = [int(tree.nodes[node]["token"]) for _, tree in trees for node in tree.frontier]
            said = self._pass.add_previous(logits[sources, position], before)
            sure = self._pass.confidence(states[sources, position], before)
            growing = [draft.speaking for draft in drafts if draft.tree is not None and len(draft.tree.frontier)]
            expand(growing, said, partial(self._sure_candidates, sure))

    def _sure_candidates(
        self, sure: Float32 | None, logits: Float32, samplings: Samplings, asked: Int64, width: int
    ) -> Level:
        """Candidates whose first ones have the head's own confidence for a share, where no noise is drawn."""
        found = self._candidates(logits, samplings, asked, width)
        if sure is not None:
            shares, asked_shares = found.shares, found.asked_shares
            rows = (samplings["temperature"] == 0.0) & (shares[:, 0] < 1.0)
            rest = (1.0 - sure[rows]) / (1.0 - shares[rows, 0])
            shares[rows, 1:] *= rest[:, None]
            asked_shares[rows] *= rest[:, None]
            shares[rows, 0] = sure[rows]
        return found

    def _candidates(self, logits: Float32, samplings: Samplings, asked: Int64, width: int) -> Level:
        return candidates(logits, self._pass.vocabulary, samplings, asked, width)

    def _time_drafts(self, clock: Callable[[], float] = time.perf_counter) -> tuple[StepCost, StepCost]:
        """Seconds of a draft whatever its depth, and of each position's tokens, by sequences that draft together."""
        most = self.shape.depth
        once, levels = [], []
        for count in _TIMED_DRAFTS:
            shallow, deep = self._timed(count, 1, clock), self._timed(count, most, clock)
            level = max((deep - shallow) / max(most - 1, 1), 0.01 * shallow)
            once.append((count, max(shallow - level, 0.01 * shallow)))
            levels.append((count, level))
        return StepCost.fit(once), StepCost.fit(levels)

    def _timed(self, count: int, depth: int, clock: Callable[[], float]) -> float:
        """Seconds of drafting chains of a depth for so many sequences, the fastest of a few rounds."""
        request = EngineRequest("", (0,), SamplingParams(), k=depth, parameters={"block_width": 1})
        features = np.zeros((1, len(self.feature_layers) * self.head.config.target_hidden_size), np.float32)
        drafts, fastest = [self.begin(request) for _ in range(count)], np.inf
        for _ in range(_ROUNDS):
            for draft in drafts:
                draft.read([0, 0], 0, features)
                self._pass.blocks.extend(draft.table, 1 + self.head.config.block_size)
                draft.speaking.begin(DraftTree(0, draft.speaking.acceptance, draft.shape, Costs(np.ones(2))), (0, 0))
            started = clock()
            self._expand(drafts)
            fastest = min(fastest, clock() - started)
            for draft in drafts:
                draft.release()
        return float(fastest)


def _draft(ask: Ask) -> BlockDraft:
    assert isinstance(ask.draft, BlockDraft)
    return ask.draft


def _build(parts: Parts) -> dict[str, BlockDrafter]:
    """One for each head, its drafts timed."""
    own = {name: head for name, head in parts.heads.items() if isinstance(head, BlockHead)}
    return {name: BlockDrafter(head, parts.target, parts.cost, copies=True) for name, head in own.items()}


METHOD = MethodSpec(
    name="block",
    meaning="a head on the target's own hidden states drafts a block of tokens in one pass",
    build=_build,
    missing="no_head",
    flag="--head",
    depth=16,
    parameters=(Parameter("block_width", 1, 16, "tokens tried at each position of the block; 1 is a chain"),),
    heads=HeadKind(is_block, KNOWN_BY, load_block_head),
)
