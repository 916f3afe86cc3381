"""Logits processors in their order: biases, penalties, grammar masks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import numpy as np

from services.generation.engine.numba_cache import compiled
from services.generation.engine.request import Grammar, GrammarLimit, SamplingParams, UnusableLogits
from services.generation.target.arrays import Float32, Int64, UInt32

_NONE, _ALL, _ONE = np.uint32(0), np.uint32(0xFFFFFFFF), np.uint32(1)


class LogitsProcessor(Protocol):
    """A processor of one sequence, used by one thread. Its effect depends only on the sequence's prompt, parameters and
    accepted tokens.

    Only tokens chosen by the target are accepted, one by one: nothing is rolled back.
    """

    @property
    def idle(self) -> bool:
        """Whether `apply` would change nothing now."""
        ...

    def apply(self, logits: Float32) -> None:
        """Change rows [..., columns] in place: float32 operations, each rounded by itself (docs/numerics.md).

        Raises UnusableLogits if no token is allowed any more.
        """
        ...

    def accept(self, token: int) -> None:
        """Note an emitted token."""
        ...


class LogitsMask(LogitsProcessor, Protocol):
    """-inf at some tokens, the bits of the others as they were."""

    def allows(self, token: int) -> bool | None:
        """Whether `apply` would keep the token's logit; None if only `apply` can determine it."""
        ...


class Columns:
    """Columns of token ids in a row of logits: the ids themselves, except for a drafter's smaller vocabulary.

    `places` [vocab_size] then has the column of each token, -1 for none.
    """

    def __init__(self, places: Int64 | None = None) -> None:
        self._places = places

    def of(self, tokens: Sequence[int]) -> Sequence[int]:
        """The columns of the tokens that have a column."""
        if self._places is None:
            return tokens
        columns: list[int] = self._places[list(tokens)].tolist()
        return [column for column in columns if column >= 0]


@compiled
def forbid(logits: Float32, allowed: UInt32) -> None:
    """-inf, in place, at tokens of logits [vocab_size] whose bit is 0; token 32 w + b has bit b of word w."""
    for w in range(allowed.shape[0]):
        word, first = allowed[w], 32 * w
        if word == _ALL:
            continue
        for i in range(first, min(first + 32, logits.shape[0])):
            if word == _NONE or not (word >> np.uint32(i - first)) & _ONE:
                logits[i] = -np.inf


class LogitBias(LogitsProcessor):
    """Adds biases to the logits of tokens."""

    idle = False

    def __init__(self, biases: Iterable[tuple[int, float]], columns: Columns) -> None:
        found = [(column, bias) for token, bias in biases for column in columns.of((token,))]
        self._ids = np.array([column for column, _ in found], np.int64)
        self._biases = np.array([bias for _, bias in found], np.float32)

    def apply(self, logits: Float32) -> None:
        logits[..., self._ids] += self._biases

    def accept(self, token: int) -> None:
        pass


class MinTokens(LogitsProcessor):
    """Forbids tokens that end the sequence before it has `min_tokens`."""

    def __init__(self, min_tokens: int, ends: Collection[int], columns: Columns) -> None:
        self._left = min_tokens
        self._ends = np.array(columns.of(sorted(ends)), np.int64)

    @property
    def idle(self) -> bool:
        return self._left <= 0

    def apply(self, logits: Float32) -> None:
        if not self.idle:
            logits[..., self._ends] = -np.inf

    def accept(self, token: int) -> None:
        self._left -= 1


class RepetitionPenalty(LogitsProcessor):
    """The repetition penalty over prompt and output (Keskar et al. 2019)."""

    idle = False

    def __init__(self, penalty: float, prompt: Sequence[int], columns: Columns) -> None:
        self._penalty, self._columns = np.float32(penalty), columns
        self._seen = _Tokens(columns.of(prompt))

    def apply(self, logits: Float32) -> None:
        values = logits[..., self._seen.ids]
        logits[..., self._seen.ids] = np.where(values > 0, values / self._penalty, values * self._penalty)

    def accept(self, token: int) -> None:
        self._seen.add(self._columns.of((token,)))


class OutputPenalties(LogitsProcessor):
    """OpenAI's frequency and presence penalty, over the output."""

    idle = False

    def __init__(self, frequency: float, presence: float, columns: Columns) -> None:
        self._frequency, self._presence, self._columns = np.float32(frequency), np.float32(presence), columns
        self._output = _Tokens()

    def apply(self, logits: Float32) -> None:
        logits[..., self._output.ids] -= self._frequency * self._output.counts + self._presence

    def accept(self, token: int) -> None:
        self._output.add(self._columns.of((token,)))


class _Tokens:
    """Distinct tokens in the order of their first appearance, with their counts."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        """Counts without a loop: a long prompt is counted on the engine's thread."""
        ids = np.array(tokens, np.int64)
        counts = np.bincount(ids)
        first = np.zeros(len(counts), np.int64)
        first[ids[::-1]] = np.arange(len(ids))[::-1]  # of equal ids, the last assignment remains
        found = counts.nonzero()[0]
        self._ids = found[np.argsort(first[found])]
        self._counts = counts[self._ids].astype(np.float32)
        self._places = {token: place for place, token in enumerate(self._ids.tolist())}

    @property
    def ids(self) -> Int64:
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Float32:
        return self._counts[: len(self._places)]

    def add(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            place = self._places.get(token)
            if place is None:
                place = self._places[token] = len(self._places)
                if place == len(self._ids):
                    size = max(64, 2 * place)
                    self._ids, self._counts = np.resize(self._ids, size), np.resize(self._counts, size)
                self._ids[place], self._counts[place] = token, 0
            self._counts[place] += 1


class GrammarMask(LogitsMask):
    """-inf at every token that the grammar does not allow next (docs/numerics.md, Grammars).

    Its matcher gets the accepted tokens and computes masks in the same order whatever was drafted.
    """

    idle = False

    def __init__(self, grammar: Grammar, ends: frozenset[int]) -> None:
        """`ends`: the tokens that end the sequence, allowed exactly at possible ends of the grammar."""
        self._grammar, self._matcher, self._ends = grammar, grammar.matcher(), ends
        self._follows = True  # whether every accepted token was allowed
        self._mask = np.zeros(-(-grammar.vocab_size // 32), np.uint32)
        self._validated: int | None = None  # the last token that `allows` found allowed

    def apply(self, logits: Float32) -> None:
        forbid(logits, self.allowed())

    def allowed(self) -> UInt32:
        """[ceil(vocab_size / 32)] a bit for each token, the lowest first. Raises UnusableLogits if the matcher has
        failed, GrammarLimit if a limit of the library was the reason.
        """
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        if self._matcher.is_error():
            kind = GrammarLimit if self._follows else UnusableLogits
            raise kind(f"the grammar leaves no token to choose: {self._matcher.get_error()}")
        may_end = self._matcher.is_accepting()
        for token in (self._grammar.eos, *self._ends):
            bit = np.uint32(1 << (token & 31))
            self._mask[token >> 5] = self._mask[token >> 5] & ~bit | (bit if may_end and token in self._ends else 0)
        return self._mask

    def allows(self, token: int) -> bool | None:
        """The token's bit of `allowed` without the others, in a tenth of the time. None if bytes are forced: then the
        mask allows less than the grammar.
        """
        if token in self._ends:
            return self._matcher.is_accepting()
        if token == self._grammar.eos or self._matcher.compute_ff_bytes():
            return None
        if self._matcher.validate_tokens([token]) != 1:
            return False
        self._validated = token
        return True

    def accept(self, token: int) -> None:
        if token not in self._ends and not self._matcher.consume_token(token):  # a limit, if the token was allowed
            was_allowed = token == self._validated or self._mask[token >> 5] & np.uint32(1 << (token & 31))
            self._follows = self._follows and bool(was_allowed)


def end_ids(params: SamplingParams, eos_token_ids: Collection[int]) -> frozenset[int]:
    """The tokens that end a sequence."""
    return frozenset(params.stop_token_ids) | frozenset(() if params.ignore_eos else eos_token_ids)


class LogitsProcessors:
    """The processors of a request, in the state after its accepted tokens.

    `columns`: of a drafter's rows, see `Columns`.
    """

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], ends: frozenset[int], columns: Int64 | None = None
    ) -> None:
        self._processors = _asked_for(params, prompt, ends, Columns(columns))
        self._seen = len(prompt)

    def accept(self, token: int) -> None:
        """Note an emitted token."""
        self._seen += 1
        for processor in self._processors:
            processor.accept(token)

    def follow(self, tokens: Sequence[int]) -> None:
        """Note all tokens so far, prompt and output."""
        for token in tokens[self._seen :]:
            self.accept(token)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to change now."""
        return all(processor.idle for processor in self._processors)

    def apply(self, logits: Float32) -> Float32:
        """The processed logits [..., columns]: the same array if there is nothing to change."""
        if self.idle:
            return logits
        processed = logits.copy()
        with np.errstate(over="ignore", invalid="ignore"):  # `Row` refuses NaN and infinity
            for processor in self._processors:
                processor.apply(processed)
        return processed


def _asked_for(
    params: SamplingParams, prompt: Sequence[int], ends: frozenset[int], columns: Columns
) -> list[LogitsProcessor]:
    found: list[LogitsProcessor] = []
    if params.repetition_penalty != 1.0:
        found.append(RepetitionPenalty(params.repetition_penalty, prompt, columns))
    if params.frequency_penalty or params.presence_penalty:
        found.append(OutputPenalties(params.frequency_penalty, params.presence_penalty, columns))
    if params.logit_bias:
        found.append(LogitBias(params.logit_bias, columns))
    if params.min_tokens and ends:
        found.append(MinTokens(params.min_tokens, ends, columns))
    return found
