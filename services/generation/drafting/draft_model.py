"""A smaller model drafts: it reads the sequence and predicts its next tokens.

After Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (ICML 2023). Unlike there,
acceptance is not random: the draft model samples with the noise that the target's sampler will use, and a token is
accepted if it is the target's own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from services.generation.drafting.acceptance import Acceptance
from services.generation.drafting.draft_tree.candidates import DraftShape, vocabulary_of
from services.generation.drafting.draft_tree.draft_tree import DraftModelState, DraftTree, expand
from services.generation.drafting.method_spec import DrafterInputs, MethodSpec
from services.generation.drafting.prediction import Prediction
from services.generation.drafting.string_level import DEEPEST, StringLevelDrafter
from services.generation.engine.cost import StepCost
from services.generation.engine.drafter import ONE_NODE, Budget, Draft, Drafter, DraftRequest
from services.generation.engine.economics import DraftCost
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32
from services.generation.target.blocks import BLOCK
from services.generation.target.config.config import read_config
from services.generation.target.errors import CacheFull
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target
from services.generation.target.timing import time_passes
from services.generation.target.unread import LogitRows

_log = logging.getLogger(__name__)

_CHUNK = 256  # committed tokens that are read before a pass at most; a sequence with more to read drafts later


class ModelDraft(Draft):
    """The draft model's side of one sequence.

    Tokens [0, length) of the sequence are in the draft model's cache. Behind them lie the draft tokens `ahead`.
    Accepted ones stay in the cache, the others are overwritten.
    """

    def __init__(self, request: EngineRequest, model: Target, state: DraftModelState) -> None:
        self.depth, self.state, self.prediction = request.k or DEEPEST, state, Prediction(request)
        self.table: list[int] = []
        self.length = 0
        self.ahead: list[int] = []
        self._model = model

    @property
    def tree(self) -> DraftTree:
        """The draft tree in flight."""
        assert self.state.tree is not None
        return self.state.tree

    def follow(self, tokens: list[int]) -> None:
        """Keep the part of the cache that agrees with the sequence, but for the last token: its logits are needed."""
        for token in self.ahead:
            if self.length >= len(tokens) - 1 or token != tokens[self.length]:
                break
            self.length += 1
        self.length, self.ahead = min(self.length, len(tokens) - 1), []

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: LogitRows) -> None:
        self.state.observe(tree.tokens[0], tokens[-len(path) :])

    def release(self) -> None:
        self._model.blocks.release(self.table)
        self.length, self.ahead, self.state.tree = 0, [], None


class DraftModelDrafter(Drafter):
    """`Drafter` by a model with the target's tokenizer, in a cache of its own. Used by the engine's thread.

    Drafts are chains, a token of all sequences in one pass. Sequences share rates of acceptance, never text. If the
    draft model's context or cache ends, or its drafts do not pay, it steps aside.
    """

    def __init__(self, model: Target, vocab_size: int, step_cost: StepCost) -> None:
        """`vocab_size` of the target, `step_cost` of the draft model's passes."""
        self._model, self.cost = model, DraftCost(StepCost(0.0, 0.0), step_cost)
        self._known = model.config.vocab_size
        ids = np.arange(min(vocab_size, self._known), dtype=np.int64)
        self._vocabulary, self._acceptance = vocabulary_of(ids, vocab_size), Acceptance()
        draft = self.begin(EngineRequest("", (0,), SamplingParams()))  # compiled now, not on the first request
        self._begin_tree(draft, [0, 0], ONE_NODE, 1, 1)
        expand([draft.state], np.zeros((1, len(ids)), np.float32))

    def begin(self, request: EngineRequest) -> ModelDraft:
        acceptance = self._acceptance.begin(request)
        state = DraftModelState.of(request, acceptance, self._model.config.eos_token_ids, self._vocabulary)
        return ModelDraft(request, self._model, state)

    def propose(self, asks: Sequence[DraftRequest]) -> list[TokenTree]:
        starting = [ask for ask in asks if self._starts(ask, len(asks))]
        if starting:
            self._expand([(_draft(ask), ask.tokens) for ask in starting])
        return [_draft(ask).tree.token_tree() for ask in asks]

    def _starts(self, ask: DraftRequest, together: int) -> bool:
        """Whether the model begins a chain. It does not if drafts do not pay, if the cache is full, or if more
        is left to read. The tree has the caller's prediction in any case.
        """
        draft, tokens, budget = _draft(ask), ask.tokens, ask.budget
        draft.follow(tokens)
        room = max(0, self._model.config.context_length - len(tokens) + 1)
        depth = min(budget.depth, budget.nodes, draft.depth, room)
        tree = self._begin_tree(draft, tokens, budget, depth, together)
        tree.add(draft.prediction.copies(tokens), budget)
        if depth < 1:
            return False
        if not tree.worth_expanding() and (draft.state.request.prediction or not self.cost.refused()):
            return False
        try:
            self._model.blocks.extend(draft.table, len(tokens) + depth - 1)
        except CacheFull:
            return False
        return self._caught_up(draft, tokens)

    def _begin_tree(self, draft: ModelDraft, tokens: list[int], budget: Budget, depth: int, together: int) -> DraftTree:
        costs = self.cost.of(budget.pass_cost, together)
        most = max(depth, budget.nodes if draft.state.request.prediction else 0)
        tree = DraftTree(tokens[-1], draft.state.acceptance, DraftShape(depth, 1, most), costs)
        draft.state.begin(tree, tokens)
        return tree

    def _caught_up(self, draft: ModelDraft, tokens: list[int]) -> bool:
        """Whether the unread tokens fit into the first pass of a draft. If not, one piece of them is read."""
        if len(tokens) - draft.length <= _CHUNK:
            return True
        rows = RowsBuilder()
        piece = tokens[draft.length : draft.length + _CHUNK]
        rows.add_chunk(draft.table, draft.length, self._readable(piece), False)
        self._model.forward(rows.build())
        draft.length += _CHUNK
        return False

    def _expand(self, chains: list[tuple[ModelDraft, list[int]]]) -> None:
        """Read what was committed, then draft a token of all chains at a time, until none wants another."""
        step = [(draft, tokens[draft.length :]) for draft, tokens in chains]
        logits = self._pass(step)
        for draft, tokens in chains:
            draft.length = len(tokens)
        while True:
            expand([draft.state for draft, _ in step], logits)
            step = [(draft, tip) for draft, _ in step if (tip := _tip(draft))]
            if not step:
                return
            logits = self._pass(step)
            for draft, tip in step:
                draft.ahead += tip

    def _pass(self, step: list[tuple[ModelDraft, list[int]]]) -> Float32:
        """Read the next tokens of each sequence. Returns the logits after the last of them, [sequences, vocabulary]."""
        builder = RowsBuilder()
        for draft, tokens in step:
            builder.add_chunk(draft.table, draft.length + len(draft.ahead), self._readable(tokens), True)
        rows, started = builder.build(), perf_counter()
        logits = np.ascontiguousarray(self._model.forward(rows).logits[:, : len(self._vocabulary.target_ids)])
        self.cost.stepped(perf_counter() - started, len(rows))
        return logits

    def _readable(self, tokens: list[int]) -> list[int]:
        """Ids beyond the draft model's vocabulary are padding of the target's; they are read as token 0."""
        return [token if token < self._known else 0 for token in tokens]


def _tip(draft: ModelDraft) -> list[int]:
    """The token that a chain goes on from; none if it has ended."""
    tokens: list[int] = draft.tree.nodes["token"][draft.tree.frontier].tolist()
    return tokens


def _draft(ask: DraftRequest) -> ModelDraft:
    assert isinstance(ask.draft, ModelDraft)
    return ask.draft


def _build(parts: DrafterInputs) -> dict[str, Drafter]:
    """A smaller model's drafter, its cache as long as the base's. With another tokenizer text is tokenized again."""
    directory, target = parts.draft_model, parts.target
    if directory is None:
        return {}
    context = min(read_config(directory).context_length, target.config.context_length)
    model = parts.load(directory, context_length=context, cache_tokens=target.blocks.total * BLOCK)
    step = StepCost.fit(time_passes(model).samples)
    same = model.tokenizer_cid == target.tokenizer_cid
    tokenizers = "the base's tokenizer" if same else "a tokenizer of its own"
    times = f"a step takes {1e3 * step.fixed:.2f} ms and {1e3 * step.row:.2f} ms a row"
    _log.info("%s drafts, with %s: %s", directory, tokenizers, times)
    if same:
        return {"draft": DraftModelDrafter(model, target.config.vocab_size, step)}
    own, ends = Tokenizer(directory), sorted(target.config.eos_token_ids)
    return {"draft": StringLevelDrafter(model, parts.tokenizer, own, ends, step)}


METHOD = MethodSpec(
    name="draft",
    meaning="a smaller model drafts",
    build=_build,
    missing="no_draft_model",
    flag="--draft-model",
    depth=DEEPEST,
)
