"""EAGLE-3 as a method: one head drafts for all sequences that ask, a level of all their trees at a time.

After Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test" (2025).
Beyond the paper, copies of the sequence's own text are candidates too, with the probabilities that the head gives them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from services.generation.drafting.acceptance import Acceptance
from services.generation.drafting.copies import OwnText
from services.generation.drafting.draft_tree.candidates import HEAD_NOISE, DraftShape, Samplings, candidates
from services.generation.drafting.draft_tree.draft_tree import DraftTree, Speaking, expand
from services.generation.drafting.draft_tree.nodes import Costs, Level
from services.generation.drafting.eagle3.checkpoint import LAYOUT
from services.generation.drafting.eagle3.head_pass import Head, HeadPass
from services.generation.drafting.eagle3.loading import confirm_layers, is_eagle3, load_head
from services.generation.drafting.heads import HeadKind
from services.generation.drafting.lookahead import LookaheadShape
from services.generation.drafting.method_spec import MethodSpec, Parameter, Parts
from services.generation.drafting.prediction import Prediction
from services.generation.engine.cost import PassCost, StepCost
from services.generation.engine.drafter import Ask, Draft, Drafter
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32, Int64
from services.generation.target.blocks import slot_of
from services.generation.target.errors import CacheFull
from services.generation.target.rows import PlacedNode, RowsBuilder
from services.generation.target.target import Target

_FEW = 16  # features that are read together with the next draft
_MOST_WAITING = 1 << 23  # bytes of features that wait for the head's next draft; it may never come


class Eagle3Draft(Draft):
    """`Draft` of one sequence.

    Entries [0, length) are in the head's cache, computed from features of committed tokens only. Features that were
    read and not computed yet are `waiting`. Entries of draft steps lie behind them and are never counted: the next
    features overwrite them, so the cache follows the accepted path.
    """

    def __init__(
        self,
        request: EngineRequest,
        shape: DraftShape,
        speaking: Speaking,
        head: HeadPass,
        store: Callable[[Eagle3Draft, int], None],
    ) -> None:
        """`store` computes the entries of so many features from `length` on."""
        self.shape, self.speaking, self.text, self.prediction = shape, speaking, OwnText(), Prediction(request)
        self.table: list[int] = []
        self.length = 0
        self.tokens: list[int] = []  # that follow the waiting features, one each
        self._waiting: list[Float32] = []
        self._head, self._store = head, store
        self._placed: dict[int, PlacedNode] = {}  # nodes of the tree in flight that the head has computed
        self._level: list[int] = []  # those that it computed last

    @property
    def tree(self) -> DraftTree | None:
        """In flight."""
        return self.speaking.tree

    @property
    def computed(self) -> int:
        """Nodes that the head computed last."""
        return len(self._level)

    @property
    def waiting(self) -> int:
        return len(self.tokens)

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        """Raises ValueError if positions were left out."""
        if start == 0 and self.length:
            self.release()
        if start != self.length + self.waiting:
            raise ValueError(f"features from position {start}; expected {self.length + self.waiting}")
        self._waiting.append(features)
        self.tokens += tokens[start + 1 : start + 1 + len(features)]
        if self.waiting > _FEW and self.waiting * features.itemsize * features.shape[1] > _MOST_WAITING:
            self._store_all_but_one()
        else:
            self._waiting[-1] = features.copy()

    def settle(self) -> None:
        """Read the waiting features, but for those that the next draft reads anyway."""
        if self.waiting > _FEW:
            self._store_all_but_one()

    def _store_all_but_one(self) -> None:
        """The last feature waits: the next draft begins with it. Where the cache is full, all go on waiting."""
        features = self.features()
        try:
            self._store(self, self.waiting - 1)
        except CacheFull:
            self._waiting = [features.copy()]
            return
        self.length += self.waiting - 1
        self.tokens, self._waiting = self.tokens[-1:], [features[-1:].copy()]

    def features(self) -> Float32:
        """The features that are waiting, [waiting, layers * hidden]."""
        return self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)

    def caught_up(self) -> None:
        """The waiting features are in the cache; draft entries start behind them, with those below the root."""
        self.length += self.waiting
        self._waiting.clear()
        self.tokens, self._placed, self._level = [], {}, [0]

    def add_frontier(self, rows: RowsBuilder) -> list[int]:
        """Add the frontier of the tree as the next level. Returns each node's parent, by place in the level before. A
        node's entry lies behind all computed ones.
        """
        assert self.tree is not None
        nodes, root = self.tree.nodes, PlacedNode(0, 0, 0, self.length, ())
        frontier: list[int] = self.tree.frontier.tolist()
        before = {node: place for place, node in enumerate(self._level)}
        sources = []
        for node in frontier:
            parent = int(nodes[node]["parent"])
            above, entry = self._placed.get(parent, root), self.length + len(self._placed)
            slot, straight = slot_of(self.table, entry), not above.branch and above.run == entry
            self._placed[node] = PlacedNode(
                token=int(nodes[node]["token"]),
                position=self.length + int(nodes[node]["depth"]) - 1,
                slot=slot,
                run=above.run + straight,
                branch=() if straight else (*above.branch, slot),
            )
            sources.append(before[parent])
        rows.add_level(self.table, [self._placed[node] for node in frontier])
        self._level = frontier
        return sources

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: Float32) -> None:
        self.speaking.observe(tree.tokens[0], tokens[-len(path) :])

    def release(self) -> None:
        self._head.blocks.release(self.table)
        self.length = 0
        self._waiting.clear()
        self.tokens, self.speaking.tree = [], None


_SPARE_BLOCKS = 128  # of the head's cache: draft entries take up to two blocks a sequence beyond its tokens
_FAINT = 0.05  # probability from which the head is asked for a copy's
_TIMED_ROWS = (1, 2, 4, 8)
_TIMED_DEPTH = 3  # levels of a typical draft: its fixed costs are divided by these
_ROUNDS = 12
_ARITHMETIC = "int8"  # of the head: half of what a step reads in bfloat16, and its drafts hold as often


class Eagle3Drafter(Drafter):
    """`Drafter` by one head on one target. Used by the engine's thread.

    At temperatures above 0 it draws with so much of the sampler's own `noise` (`candidates`); without it the head
    proposes its likeliest tokens. With `copies`, text that followed the same words earlier in the sequence is drafted
    too.
    """

    def __init__(
        self, head: Head, target: Target, cost: PassCost, *, noise: float = HEAD_NOISE, copies: bool = False
    ) -> None:
        self.head, self.shape = head, DraftShape.for_device(cost)
        self.feature_layers = head.config.feature_layers
        blocks, length = target.blocks.total + _SPARE_BLOCKS, target.config.context_length
        self._pass = HeadPass(head, target.embed, blocks, length, threads=target.threads, arithmetic=_ARITHMETIC)
        self._noise, self._guesses = noise, LookaheadShape.for_device(cost).guesses if copies else 0
        self._acceptance, self._ends = Acceptance(), target.config.eos_token_ids
        self.step_cost = self._time_steps()

    def begin(self, request: EngineRequest) -> Eagle3Draft:
        acceptance = self._acceptance.begin(request)
        speaking = Speaking.of(request, acceptance, self._ends, self._pass.vocabulary, noise=self._noise)
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

    def _candidates(self, logits: Float32, samplings: Samplings, asked: Int64, width: int) -> Level:
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


_PROBE = "The capital of France is Paris. Once upon a time, in a small town by the sea, there"
"""The prompt that the base continues to confirm a published head's layers."""


def _build(parts: Parts) -> dict[str, Eagle3Drafter]:
    """One for each head, its layers confirmed and its steps timed."""
    own = {name: head for name, head in parts.heads.items() if isinstance(head, Head)}
    prompt = parts.tokenizer.encode(_PROBE) if own else []
    return {
        name: Eagle3Drafter(confirm_layers(head, parts.target, prompt), parts.target, parts.cost, copies=True)
        for name, head in own.items()
    }


METHOD = MethodSpec(
    name="eagle3",
    meaning="a head on the target's own hidden states drafts trees",
    build=_build,
    missing="no_head",
    flag="--head",
    workloads=("single_tenant", "structured"),
    depth=16,
    parameters=(
        Parameter("tree_width", 1, 16, "children looked at below a node, and nodes expanded at each depth"),
        Parameter("tree_tokens", 1, 64, "draft tokens verified in a pass"),
    ),
    heads=HeadKind(
        is_eagle3,
        f"layout {LAYOUT}, speculators_model_type eagle3, or a flat Llama config with draft_vocab_size",
        load_head,
    ),
)
