"""The choice of a token from a row of logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from services.generation.engine.events import TokenLogprobs
from services.generation.engine.numba_cache import compiled, inlined
from services.generation.engine.request import SamplingParams
from services.generation.engine.sampling.processors import LogitsMask, LogitsProcessors
from services.generation.engine.sampling.race import GROUP, AnyRow, Row, exp64, key_of, log64, noisy_argmax, value_of
from services.generation.target.arrays import Float32, Int32, UInt64

SCALE = 2.0**40  # the best token's weight; sums over 2**20 ids stay below 2**61

_WEIGHTLESS = -28.0  # nats below the best from which a weight is 0; ln(1 / SCALE) is -27.7
_SURELY = 2.0**-20  # nats: far more than the errors of exp64 and log64
_LOWEST = -0x7F800000  # the key of -inf
_ZERO = np.uint64(0)
_DIGIT_BITS, _DIGITS = 8, 256


def candidates(row: AnyRow, params: SamplingParams) -> Int32 | None:
    """The ids that survive all filters, ascending; None for all ids if no filter is set.

    top-k and min-p look at the whole row, top-p at the distribution that they leave, as in vLLM. The best token
    survives all of them.
    """
    temperature = params.temperature
    top_k = params.top_k if params.top_k < len(row.logits) else 0
    if not top_k and params.min_p == 0.0:
        return None if params.top_p == 1.0 else _likeliest(row, temperature, params.top_p)
    bound = int(least_within(row.best, temperature, log64(params.min_p))) if params.min_p > 0.0 else _LOWEST
    tokens = top(row, top_k, bound) if top_k else at_least(row.logits, row.peaks, bound)
    if params.top_p == 1.0:
        return tokens
    weights = weights_of(row.logits, tokens, row.best, temperature)
    return first(row.logits, tokens, weights, np.uint64(_limit(params.top_p, int(weights.sum()))))


def top(row: AnyRow, count: int, bound: int = _LOWEST) -> Int32:
    """The ids of the `count` largest logits whose keys are at least `bound`, ascending.

    The `count` groups with the largest peaks hold at least `count` logits as large as the last of these peaks.
    """
    if count <= len(row.peaks):
        last, _ = last_key(row.peaks, np.ones(len(row.peaks), np.uint64), np.uint64(count))
        bound = max(bound, int(last))
    tokens = at_least(row.logits, row.peaks, bound)
    return first(row.logits, tokens, np.ones(len(tokens), np.uint64), np.uint64(count))


def _likeliest(row: AnyRow, temperature: float, top_p: float) -> Int32:
    """top-p of the whole row.

    Ids that weigh at most `share` each weigh at most total - limit together. `limit` is reached before each of them, so
    they can be skipped.
    """
    total = int(total_weight(row.logits, row.best, temperature))
    limit = _limit(top_p, total)
    share = (total - limit) // len(row.logits)
    floor = max(_WEIGHTLESS, log64(share / SCALE) - _SURELY)
    tokens = at_least(row.logits, row.peaks, int(least_within(row.best, temperature, floor)))
    return first(row.logits, tokens, weights_of(row.logits, tokens, row.best, temperature), np.uint64(limit))


def _limit(top_p: float, total: int) -> int:
    """An id survives top-p if the weights before it sum to less. At most `total`, as top_p is below 1."""
    return math.ceil(top_p * float(total))


@inlined
def weight(logit: np.float32, best: float, temperature: float) -> np.uint64:
    """A token's probability relative to the best token's, times SCALE, rounded down."""
    return np.uint64(np.int64(exp64((np.float64(logit) - best) / temperature) * SCALE))


@compiled
def total_weight(logits: Float32, best: float, temperature: float) -> np.uint64:
    total = _ZERO
    for i in range(logits.shape[0]):
        total += weight(logits[i], best, temperature)
    return total


@compiled
def weights_of(logits: Float32, tokens: Int32, best: float, temperature: float) -> UInt64:
    chosen, weights = np.empty(tokens.shape[0], np.float32), np.empty(tokens.shape[0], np.uint64)
    for i in range(tokens.shape[0]):
        chosen[i] = logits[tokens[i]]
    for i in range(tokens.shape[0]):
        weights[i] = weight(chosen[i], best, temperature)
    return weights


@compiled
def least_within(best: float, temperature: float, floor: float) -> np.int64:
    """The least key of a logit with (logit - best) / temperature >= floor; floor is at most 0."""
    low, high = np.int64(_LOWEST), np.int64(key_of(np.float32(best).view(np.int32)))
    while low < high:
        middle = (low + high) >> 1
        if (np.float64(value_of(np.int32(middle))) - best) / temperature >= floor:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def at_least(logits: Float32, peaks: Int32, bound: int) -> Int32:
    """The ids of logits whose keys are at least `bound`, ascending."""
    tokens, count, least = np.empty(logits.shape[0] + 1, np.int32), 0, value_of(np.int32(bound))
    for group in range(peaks.shape[0]):
        if peaks[group] >= bound:
            for i in range(group * GROUP, min(group * GROUP + GROUP, logits.shape[0])):
                tokens[count] = i
                count += logits[i] >= least
    return tokens[:count].copy()


@compiled
def last_key(keys: Int32, weights: UInt64, limit: np.uint64) -> tuple[np.int64, np.uint64]:
    """The least key above which the weights sum to less than `limit`, and that sum.

    Digit by digit: the weights of each digit are summed, and only the keys of the digit in which `limit` is reached are
    examined further.
    """
    low, high = np.int64(-_LOWEST), np.int64(_LOWEST)
    for i in range(keys.shape[0]):  # numba takes longer for `min` than for all of this
        low, high = min(low, np.int64(keys[i])), max(high, np.int64(keys[i]))
    span, shift, above, sums = high - low, 0, _ZERO, np.empty(_DIGITS, np.uint64)
    while span >> shift >= _DIGITS:
        shift += _DIGIT_BITS
    while True:
        for digit in range(_DIGITS):
            sums[digit] = _ZERO
        for i in range(keys.shape[0]):
            sums[(np.int64(keys[i]) - low) >> shift] += weights[i]
        digit = _DIGITS - 1
        while digit > 0 and above + sums[digit] < limit:
            above += sums[digit]
            digit -= 1
        if shift == 0:
            return low + digit, above
        inside, weighing, count = np.empty(keys.shape[0] + 1, np.int32), np.empty(keys.shape[0] + 1, np.uint64), 0
        for i in range(keys.shape[0]):
            inside[count], weighing[count] = keys[i], weights[i]
            count += (np.int64(keys[i]) - low) >> shift == digit
        keys, weights = inside[:count], weighing[:count]
        low, shift = low + (np.int64(digit) << shift), shift - _DIGIT_BITS


@compiled
def first(logits: Float32, tokens: Int32, weights: UInt64, limit: np.uint64) -> Int32:
    """The `tokens`, ascending, with less than `limit` before them in the order of falling logits, then rising ids."""
    keys, kept, count = np.empty(tokens.shape[0], np.int32), np.empty(tokens.shape[0] + 1, np.int32), 0
    bits = logits.view(np.int32)
    for i in range(tokens.shape[0]):
        keys[i] = key_of(bits[tokens[i]])
    last, before = last_key(keys, weights, limit)
    for i in range(tokens.shape[0]):
        kept[count] = tokens[i]
        count += (keys[i] > last) | ((keys[i] == last) & (before < limit))
        before += weights[i] if keys[i] == last else _ZERO
    return kept[:count].copy()


class Sampler:
    """Samples one sequence. Its state is the tokens so far; everything else of a row is an argument.

    Call `choose` then `accept`, token by token: so penalties see exactly the prefix of the row, drafted or not.
    """

    def __init__(
        self,
        params: SamplingParams,
        choice: int,
        prompt: Sequence[int],
        end_ids: frozenset[int],
        mask: LogitsMask | None = None,
    ) -> None:
        """`mask` is applied after the processors of `params`."""
        self._params = params
        self._choice = choice
        self._seed = np.uint64(params.seed)
        self._processors = LogitsProcessors(params, prompt, end_ids)
        self._mask = mask

    def sample(self, logits: Float32, position: int) -> int:
        """The token at absolute `position`, given the raw logits [vocab_size] of the row before it.

        Raises UnusableLogits.
        """
        return self.choose(Row.of(logits), position)

    def choose(self, raw: AnyRow, position: int) -> int:
        """The token that `sample` chooses, for an examined row.

        At temperature 0 the largest processed logit, the lowest id among equals; above, the largest processed logit /
        temperature plus Gumbel noise keyed by seed, choice, position and id, over the ids that survive top-k, top-p
        and min-p (docs/numerics.md, Sampling). Raises UnusableLogits.
        """
        mask, params = self._mask, self._params
        if params.temperature == 0.0 and self._processors.idle and (mask is None or mask.allows(raw.token)):
            return raw.token  # the lowest of all ids is also the lowest of the allowed ids
        logits = self._processors.apply(raw.logits)
        if mask is not None:
            logits = logits.copy()
            mask.apply(logits)
        row: AnyRow = raw
        if logits is not raw.logits:
            row = Row.of(logits, "the logits after penalties, biases, min_tokens and grammar")
        if params.temperature == 0.0:
            return row.token
        return noisy_argmax(
            row.logits, row.token, candidates(row, params), params.temperature, self._seed, self._choice, position
        )

    def accept(self, token: int) -> None:
        """Tell that `token` was emitted."""
        self._processors.accept(token)
        if self._mask is not None:
            self._mask.accept(token)


def logprobs_of(row: AnyRow, token: int, count: int) -> TokenLogprobs:
    """Log-softmax of a row at `token` and at the `count` most likely ids (lower ids first among equals)."""
    normaliser = log64(float(total_weight(row.logits, row.best, 1.0)) / SCALE)

    def logprob(id: int) -> float:
        return (float(row.logits[id]) - row.best) - normaliser

    likeliest = sorted(top(row, count).tolist(), key=lambda id: (-row.logits[id], id)) if count else []
    return TokenLogprobs(token, logprob(token), tuple((id, logprob(id)) for id in likeliest))
