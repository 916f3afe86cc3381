"""Drafts by a smaller model with another tokenizer: its text is tokenized again with the target's tokenizer.

After Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
Vocabularies" (ICML 2025), string-level exact match. In contrast to the paper, chains are greedy at every temperature,
since the sampler's noise belongs to the target's tokens. The depth follows the measured acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter

import numpy as np

from services.generation.drafting.acceptance import RETOKENIZED, Acceptance, RequestAcceptance, copy_kind
from services.generation.drafting.copies import Copies
from services.generation.drafting.text_draft import CopiesTree
from services.generation.engine.cost import StepCost
from services.generation.engine.drafter import ONE_NODE, Budget, Draft, Drafter, DraftRequest
from services.generation.engine.economics import DraftCost, Pass, best_depth
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32
from services.generation.target.errors import CacheFull
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target
from services.generation.target.unread import LogitRows

_OPEN = 16  # tokens at the end that may be tokenized again with more text
_LONGEST_OPEN = 64  # tokens after which the text is settled at any character, if no word begins
_LONGEST_CHARACTER = 4  # bytes, and so tokens; bytes that are not a character may be settled anywhere
_BEFORE = 4  # tokens decoded before the requested tokens, because decoders strip a text's first space
_ANCHOR = "\n"  # encoded before a text, because some tokenizers put a space before a text
_WORD = ("\u0120", "\u2581", "\u010a")  # the space before a word in byte-level and SentencePiece vocabularies
DEEPEST = 8  # default number of draft tokens
_CHUNK = 256  # most ids read before a pass; a sequence with more unread ids drafts later


class Retokenized:
    """The text of one sequence in ids of `into`. Complete words keep their ids; the last words are tokenized again.

    The ids affect only drafts, never the output. Special tokens that `into` does not have are omitted.
    """

    def __init__(self, source: Tokenizer, into: Tokenizer) -> None:
        self._source, self._into = source, into
        self.ids = into.encode("")  # the beginning of a text
        self.settled = len(self.ids)  # count of final ids
        self._read = 0  # tokens of the source in the final ids

    def follow(self, tokens: Sequence[int]) -> None:
        """Follow `tokens` of the source, which may only grow."""
        del self.ids[self.settled :]
        if len(tokens) - self._read > 2 * _OPEN and (border := self._border(tokens)):
            self.ids += self._spelled(tokens, self._read, border)
            self.settled, self._read = len(self.ids), border
        self.ids += self._spelled(tokens, self._read, len(tokens))

    def continuation(self, ids: Sequence[int]) -> list[int]:
        """Tokens of the source for the text of `ids`, after the text so far."""
        context = self.ids[-_BEFORE:]
        return _ids(self._source, _text(self._into, [*context, *ids], len(context)))

    def _border(self, tokens: Sequence[int]) -> int:
        """The last beginning of a word before the open end, or of a character if there is none; 0 for neither yet."""
        last = len(tokens) - _OPEN
        name = self._source.fast.id_to_token
        for place in range(last, self._read, -1):
            if (name(tokens[place]) or "").startswith(_WORD):
                return place
        if last - self._read < _LONGEST_OPEN:
            return 0
        ends = (place for place in range(last, last - _LONGEST_CHARACTER, -1) if not self._cuts(tokens[place]))
        return next(ends, last)

    def _cuts(self, token: int) -> bool:
        """Whether the place before a token is within a character."""
        return b"\x80" <= (self._source.bytes_of(token) or b"")[:1] < b"\xc0"

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
    """The text of the tokens from `first` on, after the tokens before it."""
    before, whole = tokenizer.decode_all(tokens[:first]), tokenizer.decode_all(tokens)
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode_all(tokens[first:])


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text within a longer text."""
    anchor, whole = tokenizer.encode_output(_ANCHOR), tokenizer.encode_output(_ANCHOR + text)
    return whole[len(anchor) :] if whole[: len(anchor)] == anchor else tokenizer.encode_output(text)


class StringLevelDraft(Draft):
    """The state of one sequence in the draft model. `computed`: ids in its cache, the text and then the last draft."""

    def __init__(self, request: EngineRequest, model: Target, text: Retokenized, acceptance: RequestAcceptance) -> None:
        self.depth, self.text, self.acceptance = request.k or DEEPEST, text, acceptance
        self._tree = CopiesTree(request, acceptance)
        self.table: list[int] = []
        self.computed: list[int] = []
        self._model = model

    def follow(self, tokens: list[int]) -> None:
        """Follow the text; keep the part of the cache that agrees. The last id is always read again, for its logits."""
        ids, same = self.text.ids, min(self.text.settled, len(self.computed))
        self.text.follow(tokens)
        most = min(len(self.computed), len(ids) - 1)
        while same < most and self.computed[same] == ids[same]:
            same += 1
        del self.computed[min(same, most) :]

    def begin_tree(self, tokens: list[int], budget: Budget, chain: list[int]) -> TokenTree:
        """A tree of the caller's prediction and of the draft model's tokens."""
        tree = self._tree.begin(tokens, budget)
        if chain:
            tree.add([Copies(RETOKENIZED, np.array([chain], np.int64), np.ones(1, np.int64))], budget)
        return tree.token_tree()

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: LogitRows) -> None:
        self._tree.judge(tokens, tree, path)

    def release(self) -> None:
        self._model.blocks.release(self.table)
        self.computed = []
        self._tree.drop()


@dataclass(slots=True)
class _Chain:
    """The draft for one sequence, in ids of the draft model."""

    draft: StringLevelDraft
    depth: int
    ids: list[int]
    ended: bool = False  # by the end of a turn


class StringLevelDrafter(Drafter):
    """A `Drafter` by a model with its own tokenizer and cache. Used by the engine's thread.

    A pass of the draft model has all drafting sequences. They share acceptance rates, never text. It drafts nothing if
    its context or cache is full, or its drafts do not pay.
    """

    def __init__(
        self, model: Target, tokenizer: Tokenizer, own: Tokenizer, ends: Sequence[int], step: StepCost
    ) -> None:
        """`tokenizer` and `ends`, tokens that end an output, are the target's; `own`: the draft model's tokenizer;
        `step`: the cost of its passes.
        """
        self._model, self.cost = model, DraftCost(StepCost(0.0, 0.0), step)
        self._tokenizer, self._own, self._ends = tokenizer, own, list(ends)[:1]
        self._acceptance = Acceptance()
        self.begin(EngineRequest("", (0,), SamplingParams())).begin_tree([0], ONE_NODE, [0])  # compiles

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
        """The number of tokens to draft with the largest expected gain; 0 without room, or with too many unread ids."""
        draft, budget = _draft(ask), ask.budget
        rates, costs = draft.acceptance.rates(), self.cost.of(budget.pass_cost, together)
        depths = range(1, min(draft.depth, budget.depth, budget.nodes) + 1)
        chances = rates[[copy_kind(RETOKENIZED, depth, 0) for depth in depths]]
        best = best_depth(chances, 1.0, Pass(0, 1.0, float(costs.pass_cost[0])), costs)
        if not best and not (depths and self.cost.refused()):
            return 0
        best = max(best, 1)
        draft.follow(ask.tokens)
        return best if self._ready(draft, best) else 0

    def _ready(self, draft: StringLevelDraft, depth: int) -> bool:
        """Make room for a chain; returns False if it does not fit, or if a part of the unread ids was read instead."""
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
        """Read the unread ids, then draft one token of all chains at a time."""
        step = [(chain, chain.draft.text.ids[len(chain.draft.computed) :]) for chain in chains]
        while step:
            logits = self._read([(chain.draft, ids) for chain, ids in step], wanted=True)
            for (chain, _), row in zip(step, logits, strict=True):
                best = int(row.argmax())
                chain.ended = best in self._model.config.eos_token_ids
                chain.ids += [] if chain.ended else [best]
            step = [(c, c.ids[-1:]) for c, _ in step if not c.ended and len(c.ids) < c.depth]

    def _read(self, step: list[tuple[StringLevelDraft, list[int]]], *, wanted: bool) -> Float32:
        """Read the next ids of each sequence. Returns the logits [sequences, vocabulary] after the last ids if
        `wanted`. Ids outside of its vocabulary are read as 0.
        """
        builder, known = RowsBuilder(), self._model.config.vocab_size
        for draft, ids in step:
            readable = [each if each < known else 0 for each in ids]
            builder.add_chunk(draft.table, len(draft.computed), readable, wanted)
        rows, started = builder.build(), perf_counter()
        logits = self._model.forward(rows).logits
        if wanted:
            self.cost.stepped(perf_counter() - started, len(rows))
        for draft, ids in step:
            draft.computed += ids
        return logits


def _draft(ask: DraftRequest) -> StringLevelDraft:
    assert isinstance(ask.draft, StringLevelDraft)
    return ask.draft
