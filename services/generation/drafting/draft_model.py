"""A smaller model drafts: it reads what was emitted and says what it would go on with.

After Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (ICML 2023). What differs: nothing
is accepted by chance. The draft model draws with the noise that the target's sampler will use, and a token holds if it
is the target's own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from services.generation.drafting.eagle3.children import Children, Draws, best_children
from services.generation.drafting.eagle3.confidence import Confidence
from services.generation.drafting.eagle3.coupling import Coupling
from services.generation.drafting.eagle3.growth import Growth, Prices, worth_starting
from services.generation.drafting.eagle3.shape import DraftShape
from services.generation.drafting.method_spec import MethodSpec, Parts
from services.generation.engine.cost import MARGIN, PassCost
from services.generation.engine.drafter import Ask, Draft, Drafter
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sampling.processors import LogitsProcessors, end_ids
from services.generation.engine.tree import TokenTree
from services.generation.target.blocks import BLOCK
from services.generation.target.config import read_config
from services.generation.target.errors import CacheFull, TokenizerMismatch
from services.generation.target.identity import tokenizer_cid
from services.generation.target.probing.calibration import time_passes
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Float32, Target

_log = logging.getLogger(__name__)

_DEEPEST = 8  # draft tokens, where the request does not say
_LOOK = 8  # passes, of which one is drafted for where drafts have not paid, to notice when they do again
_CHUNK = 256  # committed tokens that are read before a pass at most; a sequence with more to read drafts later


class ModelDraft(Draft):
    """The draft model's side of one sequence.

    Tokens [0, length) of the sequence are in the draft model's cache. Behind them lie the draft tokens `ahead`: those
    that turn out to be the sequence's own are kept, the others are overwritten.
    """

    def __init__(
        self,
        request: EngineRequest,
        model: Target,
        confidence: Confidence,
        coupling: Coupling,
        processors: LogitsProcessors,
    ) -> None:
        sampling = request.sampling
        self.temperature, self.seed, self.choice = sampling.temperature, sampling.seed, request.choice
        self.processors = processors
        self.cuts = float(sampling.top_k), sampling.top_p, sampling.min_p
        self.depth = request.k or _DEEPEST
        self.confidence, self.coupling = confidence, coupling
        self.firsts = 0, 0  # of the chain in flight, see `Coupling.saw`
        self.table: list[int] = []
        self.length = 0
        self.ahead: list[int] = []
        self.growth: Growth | None = None
        self.passes = 0
        self._model = model

    def follow(self, tokens: list[int]) -> None:
        """Keep of the cache what agrees with the sequence; its last token is always read anew, for what follows it."""
        for token in self.ahead:
            if self.length >= len(tokens) - 1 or token != tokens[self.length]:
                break
            self.length += 1
        self.length, self.ahead = min(self.length, len(tokens) - 1), []

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: Float32) -> None:
        growth, self.growth = self.growth, None
        if growth is not None:
            growth.judge(tokens[-len(path) :])
            self.coupling.saw(self.firsts, tokens[-len(path)])

    def release(self) -> None:
        self._model.blocks.release(self.table)
        self.length, self.ahead, self.growth = 0, [], None


class DraftModelDrafter(Drafter):
    """`Drafter` by a model with the target's tokenizer, in a cache of its own. Used by the engine's thread.

    Drafts are chains, a token of all sequences in one pass. Sequences share the measured acceptance, never text. Where
    the draft model's context or cache ends, or its drafts do not pay, it steps aside.
    """

    def __init__(self, model: Target, vocab_size: int, step_cost: PassCost) -> None:
        """`vocab_size` is the target's, `step_cost` that of the draft model's passes."""
        self._model, self._step_cost = model, step_cost
        self._known = model.config.vocab_size
        self._ids = np.arange(min(vocab_size, self._known), dtype=np.int64)
        self._columns = np.full(vocab_size, -1, np.int64)
        self._columns[: len(self._ids)] = self._ids
        self._learned: dict[tuple[str | None, bool], tuple[Confidence, Coupling]] = {}
        draft = self.begin(EngineRequest("", (0,), SamplingParams()))
        self._choices(np.zeros((1, self._known), np.float32), [draft], [1])  # compiled now, not on the first request

    def begin(self, request: EngineRequest) -> ModelDraft:
        kind = request.adapter, request.sampling.temperature > 0.0
        confidence, coupling = self._learned.setdefault(kind, (Confidence(), Coupling()))
        ends = end_ids(request.sampling, self._model.config.eos_token_ids)
        processors = LogitsProcessors(request.sampling, request.prompt, ends, self._columns)
        return ModelDraft(request, self._model, confidence, coupling, processors)

    def propose(self, asks: Sequence[Ask]) -> list[TokenTree]:
        trees = [TokenTree.root(ask.tokens[-1]) for ask in asks]
        growing = [(i, growth) for i, ask in enumerate(asks) if (growth := self._start(ask, len(asks))) is not None]
        if growing:
            self._grow([(_draft(asks[i]), growth, asks[i].tokens) for i, growth in growing])
        for i, growth in growing:
            _draft(asks[i]).growth = growth
            trees[i] = growth.tree()
        return trees

    def _start(self, ask: Ask, together: int) -> Growth | None:
        """A chain to grow; None where it would not pay, or has no place, or where there is more to read first."""
        draft, tokens, budget = _draft(ask), ask.tokens, ask.budget
        draft.follow(tokens)
        draft.processors.follow(tokens)
        depth = min(budget.depth, budget.nodes, draft.depth, self._model.config.context_length - len(tokens) + 1)
        if depth < 1:
            return None
        draft.passes += 1
        prices = Prices(
            token=budget.token_seconds,
            row=MARGIN * budget.row_seconds,
            step=self._step_cost.fixed / together,
            step_row=self._step_cost.row,
        )
        shape = DraftShape(depth, 1, depth)
        growth = Growth.alone(shape, draft.confidence, prices, tokens[-1])
        if not worth_starting(shape, draft.confidence, prices) and draft.passes % _LOOK:
            return None
        try:
            self._model.blocks.extend(draft.table, len(tokens) + depth - 1)
        except CacheFull:
            return None
        return growth if self._caught_up(draft, tokens) else None

    def _caught_up(self, draft: ModelDraft, tokens: list[int]) -> bool:
        """Whether what is left to read fits into the first pass of a draft; reads a piece of it where it does not."""
        if len(tokens) - draft.length <= _CHUNK:
            return True
        rows = RowsBuilder()
        piece = tokens[draft.length : draft.length + _CHUNK]
        rows.add_chunk(draft.table, draft.length, self._readable(piece), False)
        self._model.forward(rows.build())
        draft.length += _CHUNK
        return False

    def _grow(self, chains: list[tuple[ModelDraft, Growth, list[int]]]) -> None:
        """Read what was committed, then draft a token of all chains at a time, until none wants another."""
        step = [(draft, tokens[draft.length :]) for draft, _, tokens in chains]
        growing = [growth for _, growth, _ in chains]
        positions = [len(tokens) for _, _, tokens in chains]
        logits = self._pass(step)
        for (draft, _), position in zip(step, positions, strict=True):
            draft.length = position
        while growing:
            chosen, shares, firsts = self._choices(logits, [draft for draft, _ in step], positions)
            for (draft, _), found in zip(step, firsts, strict=True):
                if not draft.ahead:
                    draft.firsts = found
            for growth, token, share in zip(growing, chosen, shares, strict=True):
                growth.take([[token]], [[share]])
            going = [i for i, growth in enumerate(growing) if growth.frontier]
            step = [(step[i][0], [chosen[i]]) for i in going]
            growing, positions = [growing[i] for i in going], [positions[i] + 1 for i in going]
            if step:
                logits = self._pass(step)
            for draft, drafted in step:
                draft.ahead += drafted

    def _pass(self, step: list[tuple[ModelDraft, list[int]]]) -> Float32:
        """Read the next tokens of each; what the model says after the last of them, [sequences, vocab_size]."""
        rows = RowsBuilder()
        for draft, tokens in step:
            rows.add_chunk(draft.table, draft.length + len(draft.ahead), self._readable(tokens), True)
        return self._model.forward(rows.build()).logits

    def _readable(self, tokens: list[int]) -> list[int]:
        """Padding of the target's vocabulary, which means nothing, is read as token 0 where the draft model's ends."""
        return [token if token < self._known else 0 for token in tokens]

    def _choices(
        self, logits: Float32, drafts: list[ModelDraft], positions: list[int]
    ) -> tuple[list[int], list[float], list[tuple[int, int]]]:
        """The likeliest token of each row, its share, and what either rule of `coupling` puts first; `positions` are
        where those tokens would stand.
        """
        logits = np.ascontiguousarray(logits[:, : len(self._ids)])
        for row, draft in enumerate(drafts):
            logits[row] = draft.processors.apply(logits[row])
        count = len(drafts)
        draws = Draws(
            np.array([draft.temperature for draft in drafts], np.float64),
            np.array([draft.seed for draft in drafts], np.uint64), np.array([d.choice for d in drafts], np.int32),
            np.array(positions, np.int32), np.array([draft.coupling.rule for draft in drafts], np.int32),
            np.array([draft.cuts for draft in drafts]),
        )  # fmt: skip
        found = Children(
            np.empty((count, 1), np.int64), np.empty((count, 1), np.float32), np.empty((count, 2), np.int64)
        )
        best_children(logits, self._ids, draws, np.empty((count, 0), np.int64), np.empty((count, 0), np.float32), found)
        return found.tokens[:, 0].tolist(), found.shares[:, 0].tolist(), [(w, d) for w, d in found.firsts.tolist()]


def _draft(ask: Ask) -> ModelDraft:
    assert isinstance(ask.draft, ModelDraft)
    return ask.draft


def _build(parts: Parts) -> dict[str, DraftModelDrafter]:
    """By a model with the base's tokenizer, its cache as long as the base's."""
    directory, target = parts.draft_model, parts.target
    if directory is None:
        return {}
    found, expected = tokenizer_cid(directory), target.tokenizer_cid
    if found != expected:
        raise TokenizerMismatch(
            f"{directory}: its tokenizer is {found}, the base's is {expected}; expected the same tokenizer files"
        )
    context = min(read_config(directory).context_length, target.config.context_length)
    model = parts.load(directory, context_length=context, cache_tokens=target.blocks.total * BLOCK)
    step = PassCost.fit(time_passes(model))
    _log.info("%s drafts: a step takes %.2f ms and %.2f ms a row", directory, 1e3 * step.fixed, 1e3 * step.row)
    return {"draft": DraftModelDrafter(model, target.config.vocab_size, step)}


METHOD = MethodSpec(
    name="draft",
    meaning="a smaller model drafts",
    build=_build,
    missing="no_draft_model",
    flag="--draft-model",
    depth=_DEEPEST,
)
