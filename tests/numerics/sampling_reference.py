"""Sampling as `docs/numerics.md` has it, in plain Python: slow, and short enough to be believed.

Nothing here is used to serve. Tests hold the compiled programs to it, bit for bit, and an auditor may. A row of logits
is a list of float32 values.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import accumulate

from services.generation.engine.events import TokenLogprobs
from services.generation.engine.request import SamplingParams, UnusableLogits

Row = Sequence[float]

_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_ROUND = 1.5 * 2.0**52
_SCALE = 2.0**40


def exp64(x: float) -> float:
    if math.isnan(x):
        return x
    if x < -708.0:
        return 0.0
    if x > 709.0:
        return math.inf
    k = (x * _LOG2_E + _ROUND) - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    q = 1.0 / math.factorial(13)
    for n in range(12, 1, -1):
        q = 1.0 / math.factorial(n) + r * q
    return math.ldexp(1.0 + (r + (r * r) * q), int(k))  # exact


def log64(x: float) -> float:
    if x == 0.0:
        return -math.inf
    if not x > 0.0:
        return math.nan
    if x == math.inf:
        return x
    m, exponent = math.frexp(x)  # exact: x = m * 2**exponent, m from 1/2 below 1
    if m < float.fromhex("0x1.6a09e667f3bcdp-1"):
        m, exponent = 2.0 * m, exponent - 1
    f, k = m - 1.0, float(exponent)
    s = f / (2.0 + f)
    z = s * s
    r = 2.0 / 21.0
    for n in range(9, 0, -1):
        r = 2.0 / (2 * n + 1) + z * r
    r = z * r
    half_square = (0.5 * f) * f
    return (((s * (half_square + r) + k * _LN2_LOW) - half_square) + f) + k * _LN2_HIGH


def float32(x: float) -> float:
    """Rounded to the nearest float32, ties to even."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)
    return rounded


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    (c0, c1, c2, c3), (k0, k1), low = counter, key, 2**32 - 1
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & low, (p0 >> 32) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return c0, c1, c2, c3


def noise(seed: int, choice: int, position: int, token: int) -> float:
    word = philox4x32((token // 4, position, choice, 0), (seed % 2**32, seed // 2**32))[token % 4]
    return -log64(-log64((word + 0.5) * 2.0**-32))


def processed(
    logits: Row, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], ends: Collection[int],
    allowed: Collection[int] | None = None,
) -> Row:  # fmt: skip
    """`allowed`: the ids that a grammar allows after the output; None without one."""
    row = list(logits)
    if params.repetition_penalty != 1.0:
        penalty = float32(params.repetition_penalty)
        for token in {*prompt, *output}:
            row[token] = float32(row[token] / penalty if row[token] > 0.0 else row[token] * penalty)
    if params.frequency_penalty or params.presence_penalty:
        frequency, presence = float32(params.frequency_penalty), float32(params.presence_penalty)
        for token, count in Counter(output).items():
            row[token] = float32(row[token] - float32(float32(frequency * count) + presence))
    for token, bias in params.logit_bias:
        row[token] = float32(row[token] + float32(bias))
    if len(output) < params.min_tokens:
        for token in ends:
            row[token] = -math.inf
    if allowed is not None:
        row = [logit if token in allowed else -math.inf for token, logit in enumerate(row)]
    return row


def check(row: Row) -> None:
    """Raises UnusableLogits for a row that no token is chosen by."""
    if any(math.isnan(logit) or logit == math.inf for logit in row) or max(row) == -math.inf:
        raise UnusableLogits("a logit is NaN or inf, or all are -inf")


def by_rank(row: Row) -> list[int]:
    """All ids, the largest logit first, the lowest id first among equals."""
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


def largest(row: Row) -> float:
    return max(row) + 0.0  # turns -0 into 0


def weight(logit: float, best: float, temperature: float) -> int:
    return int(exp64((logit - best) / temperature) * _SCALE)


def kept(row: Row, params: SamplingParams) -> list[int]:
    """The ids that survive top-k, min-p and top-p, by rank."""
    best, temperature = largest(row), params.temperature
    ids = by_rank(row)[: params.top_k or None]
    if params.min_p > 0.0:
        ids = [token for token in ids if (row[token] - best) / temperature >= log64(params.min_p)]
    if params.top_p == 1.0:
        return ids
    weights = [weight(row[token], best, temperature) for token in ids]
    limit = math.ceil(params.top_p * float(sum(weights)))
    return [token for token, before in zip(ids, accumulate(weights, initial=0), strict=False) if before < limit]


def sample(row: Row, params: SamplingParams, choice: int, position: int) -> int:
    """The token chosen by a processed row."""
    check(row)
    if params.temperature == 0.0:
        return by_rank(row)[0]

    def score(token: int) -> float:
        return row[token] / params.temperature + noise(params.seed, choice, position, token)

    return min(kept(row, params), key=lambda token: (-score(token), token))


def logprobs(row: Row, token: int, count: int) -> TokenLogprobs:
    """Log-probabilities of the raw row."""
    best = largest(row)
    normaliser = log64(float(sum(weight(logit, best, 1.0) for logit in row)) / _SCALE)
    value = {id: (row[id] - best) - normaliser for id in (token, *by_rank(row)[:count])}
    return TokenLogprobs(token, value[token], tuple((id, value[id]) for id in by_rank(row)[:count]))
