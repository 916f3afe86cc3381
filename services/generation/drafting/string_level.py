"""A smaller model with another tokenizer drafts: its text is tokenized again, and accepted where it is the target's.

After Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
Vocabularies" (ICML 2025), string-level exact match. Unlike there, chains are greedy at every temperature, since the
sampler's noise belongs to the target's tokens. As many tokens are drafted as have paid so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from services.generation.drafting.acceptance import RETOKENIZED, Acceptance, RequestAcceptance, copy_kind
from services.generation.drafting.copies import Copies
from services.generation.drafting.draft_tree.candidates import DraftShape
from services.generation.drafting.draft_tree.draft_tree import DraftTree
from services.generation.drafting.draft_tree.nodes import Costs, best_depth
from services.generation.drafting.prediction import Prediction
from services.generation.engine.cost import StepCost
from services.generation.engine.drafter import ONE_NODE, Budget, Draft, Drafter, DraftRequest
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32
from services.generation.target.errors import CacheFull
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target

_OPEN = 16  # tokens at the end that may be spelled anew once more text is there
_LONGEST_OPEN = 64  # tokens from which on the text is settled at any character, where no word begins
_BEFORE = 4  # tokens that are decoded before those that are asked for: decoders strip a text's first space
_ANCHOR = "\n"  # stands before what is encoded: some tokenizers put a space before a text
_WORD = ("\u0120", "\u2581", "\u010a")  # how byte-level and SentencePiece vocabularies write the space before a word


class Retokenized:
    """The text of one sequence in ids of `into`. Words once complete keep their ids; the last ones are spelled anew.

    The ids affect drafts only, never the output. Special tokens that `into` does not have are left out.
    """

    def __init__(self, source: Tokenizer, into: Tokenizer) -> None:
        self._source, self._into = source, into
        self.ids = into.encode("")  # what a text begins with
        self.settled = len(self.ids)  # of them that stay as they are
        self._read = 0  # tokens of the source that those stand for

    def follow(self, tokens: Sequence[int]) -> None:
        """`tokens` of the source may only have grown."""
        del self.ids[self.settled :]
        if len(tokens) - self._read > 2 * _OPEN and (border := self._border(tokens)):
            self.ids += self._spelled(tokens, self._read, border)
            self.settled, self._read = len(self.ids), border
        self.ids += self._spelled(tokens, self._read, len(tokens))

    def continuation(self, ids: Sequence[int]) -> list[int]:
        """Tokens of the source for what `ids` add to the text."""
        context = self.ids[-_BEFORE:]
        return _ids(self._source, _text(self._into, [*context, *ids], len(context)))

    def _border(self, tokens: Sequence[int]) -> int:
        """The last place outside the open end where a word begins, or any character where none does; 0 for none."""
        last = len(tokens) - _OPEN
        name = self._source.fast.id_to_token
        for place in range(last, self._read, -1):
            if (name(tokens[place]) or "").startswith(_WORD):
                return place
        if last - self._read < _LONGEST_OPEN:
            return 0
        ends = (place for place in range(last, self._read, -1) if not self._cuts(tokens, place))
        return next(ends, 0)

    def _cuts(self, tokens: Sequence[int], place: int) -> bool:
        """Whether a place lies within a character."""
        return self._source.decode_all(tokens[self._read : place]).endswith("\N{REPLACEMENT CHARACTER}")

    def _spelled(self, tokens: Sequence[int], start: int, end: int) -> list[int]:
        before = max(0, start - _BEFORE)
        kept = [token for token in tokens[start:end] if token not in self._unknown]
        context = [token for token in tokens[before:start] if token not in self._unknown]
        return _ids(self._into, _text(self._source, [*context, *kept], len(context)))

    @cached_property
    def _unknown(self) -> frozenset[int]:
        """Special tokens of the source that the other tokenizer does not have."""
        return frozenset(self._source.markup[text] for text in self._source.hidden - self._into.hidden)


def _text(tokenizer: Tokenizer, tokens: Sequence[int], first: int) -> str:
    """The text of the tokens from the first one on, as it goes on after those before."""
    before, whole = tokenizer.decode_all(tokens[:first]), tokenizer.decode_all(tokens)
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode_all(tokens[first:])


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text as it stands within another."""
    anchor, whole = tokenizer.encode_output(_ANCHOR), tokenizer.encode_output(_ANCHOR + text)
    return whole[len(anchor) :] if whole[: len(anchor)] == anchor else tokenizer.encode_output(text)


DEEPEST = 8  # draft tokens, where the request does not say
_CHUNK = 256  # ids that are read before a pass at most; a sequence with more to read drafts later


class StringLevelDraft(Draft):
    """The draft model's side of one sequence. The first `computed` of `text.ids` are in the draft model's cache, and
    behind them its last draft.
    """

    def __init__(self, request: EngineRequest, model: Target, text: Retokenized, acceptance: RequestAcceptance) -> None:
        self.depth, self.text, self.acceptance = request.k or DEEPEST, text, acceptance
        self.prediction = Prediction(request)
        self.table: list[int] = []
        self.computed: list[int] = []
        self._model = model
        self._tree: DraftTree | None = None  # in flight

    def follow(self, tokens: list[int]) -> None:
        """Keep the part of the cache that agrees with the text. The last id is always read again, for its logits."""
        ids, same = self.text.ids, min(self.text.settled, len(self.computed))
        self.text.follow(tokens)
        most = min(len(self.computed), len(ids) - 1)
        while same < most and self.computed[same] == ids[same]:
            same += 1
        del self.computed[min(same, most) :]

    def begin_tree(self, tokens: list[int], budget: Budget, chain: list[int]) -> TokenTree:
        """A tree of the caller's prediction and of the draft model's tokens."""
        tree = DraftTree(
            tokens[-1], self.acceptance, DraftShape(budget.depth, 0, budget.nodes), Costs(budget.cost_by_nodes), room=0
        )
        tree.add(self.prediction.copies(tokens), budget)
        if chain:
            tree.add([Copies(RETOKENIZED, np.array([chain], np.int64), np.ones(1, np.int64))], budget)
        self._tree = tree
        return tree.token_tree()

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: Float32) -> None:
        drafted, self._tree = self._tree, None
        if drafted is not None and drafted.root == tree.tokens[0]:
            drafted.judge(tokens[-len(path) :])

    def release(self) -> None:
        self._model.blocks.release(self.table)
        self.computed, self._tree = [], None


@dataclass(slots=True)
class _Chain:
    """The draft for one sequence, in ids of the draft model."""

    draft: StringLevelDraft
    depth: int
    ids: list[int]
    ended: bool = False  # with the end of a turn


class StringLevelDrafter(Drafter):
    """`Drafter` by a model with a tokenizer and a cache of its own. Used by the engine's thread.

    A pass of the draft model is over all sequences that draft. They share rates of acceptance, never text. Where the
    draft model's context or cache ends, or its drafts do not pay, it steps aside.
    """

    def __init__(
        self, model: Target, tokenizer: Tokenizer, own: Tokenizer, ends: Sequence[int], step: StepCost
    ) -> None:
        """`tokenizer` and `ends`, tokens that end an output, are the target's; `own` is the draft model's. `step` is
        the cost of its passes.
        """
        self._model, self._step_cost = model, step
        self._tokenizer, self._own, self._ends = tokenizer, own, list(ends)[:1]
        self._acceptance = Acceptance()
        self.begin(EngineRequest("", (0,), SamplingParams())).begin_tree([0], ONE_NODE, [0])  # compiled now

    def begin(self, request: EngineRequest) -> StringLevelDraft:
        text = Retokenized(self._tokenizer, self._own)
        return StringLevelDraft(request, self._model, text, self._acceptance.begin(request))

    def propose(self, asks: Sequence[DraftRequest]) -> list[TokenTree]:
        chains = [_Chain(_draft(ask), self._depth(ask, len(asks)), []) for ask in asks]
        self._expand([chain for chain in chains if chain.depth])
        return [
            chain.draft.begin_tree(ask.tokens, ask.budget, self._retokenized(chain))
            for chain, ask in zip(chains, asks, strict=True)
        ]

    def _retokenized(self, chain: _Chain) -> list[int]:
        """The chain in the target's tokens."""
        tokens = chain.draft.text.continuation(chain.ids) if chain.ids else []
        return tokens + (self._ends if chain.ended else [])

    def _depth(self, ask: DraftRequest, together: int) -> int:
        """How many tokens to draft: those that gain most by its acceptance. 0 without room, or with more to read."""
        draft, budget = _draft(ask), ask.budget
        rates, step = draft.acceptance.rates(), self._step_cost
        depths = range(1, min(draft.depth, budget.depth, budget.nodes) + 1)
        costs = Costs(budget.cost_by_nodes, step.fixed / together, step.row)
        chances = rates[[copy_kind(RETOKENIZED, depth, 0) for depth in depths]]
        best = best_depth(chances, costs, 1.0, 1.0, costs.by_nodes[0])
        if not best:
            draft.acceptance.fade()
            return 0
        draft.follow(ask.tokens)
        return best if self._ready(draft, best) else 0

    def _ready(self, draft: StringLevelDraft, depth: int) -> bool:
        """Whether a chain fits, and the unread ids fit into its first pass. If not, a piece of these is read."""
        ids = draft.text.ids
        if not ids or len(ids) + depth > self._model.config.context_length:
            return False
        try:
            self._model.blocks.extend(draft.table, len(ids) + depth)
        except CacheFull:
            return False
        if len(ids) - len(draft.computed) <= _CHUNK:
            return True
        self._read([(draft, ids[len(draft.computed) : len(draft.computed) + _CHUNK])], wanted=False)
        return False

    def _expand(self, chains: list[_Chain]) -> None:
        """Read what is new, then draft a token of all chains at a time."""
        step = [(chain, chain.draft.text.ids[len(chain.draft.computed) :]) for chain in chains]
        while step:
            logits = self._read([(chain.draft, ids) for chain, ids in step], wanted=True)
            for (chain, _), row in zip(step, logits, strict=True):
                best = int(row.argmax())
                chain.ended = best in self._model.config.eos_token_ids
                chain.ids += [] if chain.ended else [best]
            step = [(c, c.ids[-1:]) for c, _ in step if not c.ended and len(c.ids) < c.depth]

    def _read(self, step: list[tuple[StringLevelDraft, list[int]]], *, wanted: bool) -> Float32:
        """Read the next ids of each sequence. Returns the logits after the last of them where they are `wanted`,
        [sequences, vocabulary]. Ids that its vocabulary lacks are read as 0.
        """
        rows, known = RowsBuilder(), self._model.config.vocab_size
        for draft, ids in step:
            readable = [each if each < known else 0 for each in ids]
            rows.add_chunk(draft.table, len(draft.computed), readable, wanted)
        logits = self._model.forward(rows.build()).logits
        for draft, ids in step:
            draft.computed += ids
        return logits


def _draft(ask: DraftRequest) -> StringLevelDraft:
    assert isinstance(ask.draft, StringLevelDraft)
    return ask.draft
