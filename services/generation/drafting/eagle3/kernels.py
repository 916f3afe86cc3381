"""The head's own kernels: a whole step on few rows in one call, and what its draft tokens are chosen by.

A head of a small base computes for tens of microseconds; calling its operations one by one from Python would take
longer than that. Nothing here has to be exact: a head only proposes, so these may fuse and reorder additions.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.eagle3.products import Panels, multiply
from services.generation.drafting.eagle3.quick import quick
from services.generation.drafting.eagle3.scan import above, largest
from services.generation.engine.philox import gumbel
from services.generation.target.attention import attend
from services.generation.target.kernels import Float32, Int32, add_rms_norm, rms_norm, rotate_and_store, silu_multiply

UNCOUPLED, WHOLE, DOUBTED = range(-1, 2)  # rules of `coupling`: how much of the sampler's noise a draft is drawn with
_SURE = 1e-3  # doubt up to which noise that it weighs is not drawn at all: that costs more than the rest of a token
_REACH = 10.0  # nats below the best from which a token is not drawn for: its noise would have to be rarer than e^-10


@quick
def enter(
    embedded: Float32, feature: Float32, embedding_norm: Float32, feature_norm: Float32, epsilon: np.float32,
    normed_residual: bool, out: Float32, residual: Float32,
) -> None:  # fmt: skip
    """What the first layer reads: out [rows, 2 hidden] = the normed embedding beside the normed feature.

    `residual` [rows, hidden] starts from the feature, or from the normed one.
    """
    hidden = feature.shape[1]
    rms_norm(embedded, embedding_norm, epsilon, out[:, :hidden])
    rms_norm(feature, feature_norm, epsilon, out[:, hidden:])
    residual[:] = out[:, hidden:] if normed_residual else feature


@quick
def rotate(
    queries: Float32, positions: Int32, cos: Float32, sin: Float32, head_norms: Float32, epsilon: np.float32
) -> None:
    """Queries [rows, heads, dim], by position, in place, as `target.kernels.rotate_and_store` rotates them."""
    half = queries.shape[2] // 2
    for r in range(queries.shape[0]):
        c, s = cos[positions[r]], sin[positions[r]]
        for h in range(queries.shape[1]):
            head = queries[r, h]
            if head_norms.shape[0]:
                inverse = np.float32(1.0) / np.float32(math.sqrt((head * head).mean() + epsilon))
                for i in range(2 * half):
                    head[i] *= inverse * head_norms[0, i]
            for i in range(half):
                low, high = head[i], head[i + half]
                head[i] = low * c[i] - high * s[i]
                head[i + half] = high * c[i] + low * s[i]


@quick
def step(
    embedded: Float32, feature: Float32, linears: tuple[Panels, ...], norms: tuple[Float32, ...],
    head_norms: Float32, epsilon: np.float32, normed_residual: bool,
    heads: int, positions: Int32, slots: Int32, wanted: Int32,
    lines: Int32, reading: Int32, contiguous: Int32, branch_starts: Int32, branches: Int32,
    tables: Int32, cos: Float32, sin: Float32, keys: Float32, values: Float32, scale: np.float32,
    share: int, threads: int, out: Float32, normed: Float32, logits: Float32,
) -> None:  # fmt: skip
    """One head of one layer, without biases, on a few rows: `HeadPass.run` in one call.

    linears: keys and values, queries, output, gate and up, down, lm_head; norms: of the embedding, of the feature,
    after attention, final. All rows have `positions` and `slots`; those of them that are `wanted` attend, at positions
    `reading`, as `target.attention.attend` says. Of these, `out` [wanted, hidden] is the layer's output, `normed` the
    same through the final norm, and there are `logits` [wanted, draft_vocab_size]. `share`, `threads`: see `multiply`.
    """
    rows, dim = embedded.shape[0], values.shape[3]
    read, residual = np.empty((rows, 2 * feature.shape[1]), np.float32), np.empty_like(feature)
    enter(embedded, feature, norms[0], norms[1], epsilon, normed_residual, read, residual)
    stored = np.empty((rows, 2 * values.shape[1], dim), np.float32)
    multiply(read, linears[0], stored.reshape(rows, 2 * values.shape[1] * dim), share, threads)
    rotate_and_store(stored, 0, positions, slots, cos, sin, head_norms, epsilon, keys, values)
    rows = wanted.shape[0]
    if rows == 0:
        return
    out[:] = residual[wanted]
    queries, mixed = np.empty((rows, heads, dim), np.float32), np.empty((rows, heads, dim), np.float32)
    multiply(read[wanted], linears[1], queries.reshape(rows, heads * dim), share, threads)
    rotate(queries, reading, cos, sin, head_norms, epsilon)
    attend(queries, heads, keys, values, tables, lines, reading, contiguous, branch_starts, branches, 0, scale, mixed)
    update = np.empty((rows, out.shape[1]), np.float32)
    multiply(mixed.reshape(rows, heads * dim), linears[2], update, share, threads)
    add_rms_norm(out, update, norms[2], epsilon, normed)
    inner = np.empty((rows, linears[4].shape[1]), np.float32)
    wide = np.empty((rows, 2 * inner.shape[1]), np.float32)
    multiply(normed, linears[3], wide, share, threads)
    silu_multiply(wide, inner)
    multiply(inner, linears[4], update, share, threads)
    add_rms_norm(out, update, norms[3], epsilon, normed)
    multiply(normed, linears[5], logits, share, threads)


@quick
def best_children(
    logits: Float32, target_ids: NDArray[np.int64], temperatures: NDArray[np.float64], seeds: NDArray[np.uint64],
    choices: Int32, positions: Int32, rules: Int32, cuts: NDArray[np.float64],
    tokens: NDArray[np.int64], shares: Float32, asked: NDArray[np.int64], given: Float32, firsts: NDArray[np.int64],
) -> None:  # fmt: skip
    """The tokens [rows, width] that the head holds likeliest after each row, best first, and the share of each.

    logits [rows, draft_vocab_size]; positions are those of the tokens to come. Where a row's temperature is above 0
    and its rule is not UNCOUPLED, logits / temperature gets the noise that the target's sampler will use there (DESIGN,
    leg 2), so that the order is that of likely winners, of the tokens that `cuts` [rows, (top_k, top_p, min_p)] leave,
    as the sampler takes them; DOUBTED weighs the noise by the probability of all tokens but the likeliest. A share is
    the token's part of the softmax over those scores; those of the draft ids `asked` [rows, any] are `given`, -1 where
    an id is below 0. `firsts` [rows, 2] are the tokens that WHOLE and DOUBTED put first, the same where there is hardly
    a doubt.
    """
    width = tokens.shape[1]
    places, kept = np.empty(width, np.int64), np.empty(logits.shape[1], np.int64)
    top = np.empty(width, np.float64)
    for r in range(logits.shape[0]):
        row, temperature = logits[r], temperatures[r]
        scale = 1.0 / temperature if temperature > 0.0 else 1.0
        best = largest(row)
        limit = min(best - np.float32(_REACH / scale), np.nextafter(best, np.float32(-np.inf)))
        if temperature > 0.0:
            limit = _limit(row, scale, limit, cuts[r], kept)
        likely = kept[: above(row, limit, kept)]
        coupled = temperature > 0.0 and rules[r] != UNCOUPLED
        doubt = _doubt(row, best, scale, likely) if coupled else 0.0
        noisy = coupled and (rules[r] == WHOLE or doubt > _SURE)
        weight = 1.0 if rules[r] == WHOLE else doubt
        top[:] = -np.inf
        places[:] = 0
        whole = doubted = -np.inf
        firsts[r] = -1
        total, pivot = 0.0, np.float64(best) * scale
        for v in likely:
            score = np.float64(row[v]) * scale
            if noisy:
                noise = gumbel(seeds[r], choices[r], positions[r], target_ids[v])
                if score + noise > whole and doubt > _SURE:
                    whole, firsts[r, WHOLE] = score + noise, target_ids[v]
                if score + doubt * noise > doubted and doubt > _SURE:
                    doubted, firsts[r, DOUBTED] = score + doubt * noise, target_ids[v]
                score += weight * noise
            if score > pivot:
                total, pivot = total * np.exp(pivot - score), score
            total += np.exp(score - pivot)
            if score > top[width - 1]:
                _insert(top, places, score, v)
        if doubt <= _SURE:
            firsts[r] = target_ids[places[0]]
        for i in range(width):
            tokens[r, i] = target_ids[places[i]] if top[i] > -np.inf else -1
            shares[r, i] = np.exp(top[i] - pivot) / total if top[i] > -np.inf else 0.0
        for i in range(asked.shape[1]):
            v = asked[r, i]
            given[r, i] = -1.0
            if v >= 0:
                score = np.float64(row[v]) * scale
                if noisy:
                    score += weight * gumbel(seeds[r], choices[r], positions[r], target_ids[v])
                given[r, i] = np.exp(score - pivot) / total if row[v] > limit else 0.0


@quick
def _insert(top: NDArray[np.float64], places: NDArray[np.int64], score: float, v: int) -> None:
    """Among the best, in place of the last: before lower ones, behind equals."""
    at = len(top) - 1
    while at > 0 and top[at - 1] < score:
        top[at], places[at] = top[at - 1], places[at - 1]
        at -= 1
    top[at], places[at] = score, v


@quick
def _doubt(row: Float32, best: np.float32, scale: float, places: NDArray[np.int64]) -> float:
    """The probability of all `places` but the best one."""
    total = 0.0
    for v in places:
        total += np.exp((np.float64(row[v]) - np.float64(best)) * scale)
    return 1.0 - 1.0 / total


@quick
def _limit(
    row: Float32, scale: float, least: np.float32, cut: NDArray[np.float64], places: NDArray[np.int64]
) -> np.float32:
    """The logit that tokens have to be above; tokens up to `least` are out. Writes into `places` [row].

    By min-p, then top-k, then top-p of what those leave (`engine.sampler.Sampler`); equals of the last one stay.
    """
    if cut[0] <= 0.0 and cut[1] >= 1.0 and cut[2] <= 0.0:
        return least
    falling = -np.sort(-row[places[: above(row, least, places)]])
    if len(falling) == 0:
        return least
    last = len(falling) if cut[0] <= 0.0 else min(len(falling), int(cut[0]))
    if cut[2] > 0.0:
        while last > 1 and (falling[last - 1] - falling[0]) * scale < np.log(cut[2]):
            last -= 1
    weights = np.exp((falling[:last] - falling[0]).astype(np.float64) * scale)
    if cut[1] < 1.0:
        enough, before, last = cut[1] * weights.sum(), 0.0, 0
        while last < weights.shape[0] and before < enough:
            before += weights[last]
            last += 1
    limit: np.float32 = np.nextafter(falling[last - 1], np.float32(-np.inf))
    return limit
