"""The head's own kernels: a whole step on few rows in one call, and what its draft tokens are chosen by.

A head of a small base computes for tens of microseconds; calling its operations one by one from Python would take
longer than that. Nothing here has to be exact: a head only proposes, so these may fuse and reorder additions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from services.generation.engine.philox import gumbel
from services.generation.target.attention import attend
from services.generation.target.kernels import Float32, Int32, add_rms_norm, rms_norm, rotate_and_store, silu_multiply

Function = TypeVar("Function", bound=Callable[..., Any])

ROWS = 4  # rows that go through a weight together
_REACH = 10.0  # nats below the best from which a token is not drawn for: its noise would have to be rarer than e^-10
_FREE = {"contract", "reassoc", "nsz", "arcp"}


def quick(function: Function) -> Function:
    """Compile with the freedom to fuse and reorder, NaN and infinities kept; cached like a kernel."""
    return cast(Function, njit(nogil=True, cache=True, fastmath=_FREE, error_model="numpy")(function))


@quick
def multiply(x: Float32, weight: Float32, out: Float32) -> None:
    """out = x @ weight; x [rows, in], weight [in, out], `in` a multiple of 4."""
    rows, whole = x.shape[0], x.shape[0] - x.shape[0] % ROWS
    out[:] = np.float32(0.0)
    for r in range(0, whole, ROWS):
        o0, o1, o2, o3 = out[r], out[r + 1], out[r + 2], out[r + 3]
        for k in range(0, weight.shape[0], 4):
            w0, w1, w2, w3 = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
            a0, a1, a2, a3 = x[r, k], x[r, k + 1], x[r, k + 2], x[r, k + 3]
            b0, b1, b2, b3 = x[r + 1, k], x[r + 1, k + 1], x[r + 1, k + 2], x[r + 1, k + 3]
            c0, c1, c2, c3 = x[r + 2, k], x[r + 2, k + 1], x[r + 2, k + 2], x[r + 2, k + 3]
            d0, d1, d2, d3 = x[r + 3, k], x[r + 3, k + 1], x[r + 3, k + 2], x[r + 3, k + 3]
            for n in range(weight.shape[1]):
                u0, u1, u2, u3 = w0[n], w1[n], w2[n], w3[n]
                o0[n] += a0 * u0 + a1 * u1 + a2 * u2 + a3 * u3
                o1[n] += b0 * u0 + b1 * u1 + b2 * u2 + b3 * u3
                o2[n] += c0 * u0 + c1 * u1 + c2 * u2 + c3 * u3
                o3[n] += d0 * u0 + d1 * u1 + d2 * u2 + d3 * u3
    for r in range(whole, rows):
        line = out[r]
        for k in range(0, weight.shape[0], 4):
            w0, w1, w2, w3 = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
            a0, a1, a2, a3 = x[r, k], x[r, k + 1], x[r, k + 2], x[r, k + 3]
            for n in range(weight.shape[1]):
                line[n] += a0 * w0[n] + a1 * w1[n] + a2 * w2[n] + a3 * w3[n]


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
def step(
    embedded: Float32, feature: Float32, linears: tuple[Float32, ...], norms: tuple[Float32, ...],
    head_norms: Float32, epsilon: np.float32, normed_residual: bool,
    heads: int, positions: Int32, slots: Int32, lines: Int32, contiguous: Int32, branch_starts: Int32, branches: Int32,
    tables: Int32, wanted: Int32, cos: Float32, sin: Float32, keys: Float32, values: Float32, scale: np.float32,
    out: Float32, normed: Float32, logits: Float32,
) -> None:  # fmt: skip
    """One head of one layer, without biases, on a few rows: `HeadPass.run` in one call.

    linears: qkv, output, gate and up, down, lm_head, each [in, out]; norms: of the embedding, of the feature, after
    attention, final. `out` [rows, hidden] is the layer's output, `normed` the same through the final norm, `logits`
    [wanted, draft_vocab_size]. The rest is as in `target.rows.Rows` and `target.attention.attend`.
    """
    rows, dim = embedded.shape[0], values.shape[3]
    both = np.empty((rows, 2 * feature.shape[1]), np.float32)
    enter(embedded, feature, norms[0], norms[1], epsilon, normed_residual, both, out)
    qkv = np.empty((rows, linears[0].shape[1]), np.float32)
    multiply(both, linears[0], qkv)
    queries = qkv.reshape(rows, qkv.shape[1] // dim, dim)
    rotate_and_store(queries, heads, positions, slots, cos, sin, head_norms, epsilon, keys, values)
    mixed = np.empty((rows, heads, dim), np.float32)
    attend(queries, heads, keys, values, tables, lines, positions, contiguous, branch_starts, branches, 0, scale, mixed)
    update = np.empty((rows, out.shape[1]), np.float32)
    multiply(mixed.reshape(rows, heads * dim), linears[1], update)
    add_rms_norm(out, update, norms[2], epsilon, normed)
    wide = np.empty((rows, linears[2].shape[1]), np.float32)
    multiply(normed, linears[2], wide)
    inner = np.empty((rows, linears[3].shape[0]), np.float32)
    silu_multiply(wide, inner)
    multiply(inner, linears[3], update)
    add_rms_norm(out, update, norms[3], epsilon, normed)
    multiply(normed[wanted], linears[4], logits)


@quick
def best_children(
    logits: Float32, target_ids: NDArray[np.int64], temperatures: NDArray[np.float64], seeds: NDArray[np.uint64],
    choices: Int32, positions: Int32, coupled: NDArray[np.bool_], tokens: NDArray[np.int64], shares: Float32,
) -> None:  # fmt: skip
    """The tokens [rows, width] that the head holds likeliest after each row, best first, and the share of each.

    logits [rows, draft_vocab_size]; positions are those of the tokens to come. Where a row's temperature is above 0
    and it is coupled, logits / temperature gets the noise that the target's sampler will use there (DESIGN, leg 2), so
    that the order is that of likely winners. A share is the token's part of the softmax over those scores.
    """
    width = tokens.shape[1]
    places = np.empty(width, np.int64)
    top = np.empty(width, np.float64)
    for r in range(logits.shape[0]):
        row, temperature = logits[r], temperatures[r]
        scale = 1.0 / temperature if temperature > 0.0 else 1.0
        largest = np.float64(_largest(row)) * scale
        noisy = temperature > 0.0 and coupled[r]
        top[:] = -np.inf
        places[:] = 0
        total, pivot = 0.0, largest
        for v in range(row.shape[0]):
            score = np.float64(row[v]) * scale
            if not score > largest - _REACH:
                continue
            if noisy:
                score += gumbel(seeds[r], choices[r], positions[r], target_ids[v])
            if score > pivot:
                total, pivot = total * np.exp(pivot - score), score
            total += np.exp(score - pivot)
            if score > top[width - 1]:
                at = width - 1
                while at > 0 and top[at - 1] < score:
                    top[at], places[at] = top[at - 1], places[at - 1]
                    at -= 1
                top[at], places[at] = score, v
        for i in range(width):
            tokens[r, i] = target_ids[places[i]] if top[i] > -np.inf else -1
            shares[r, i] = np.exp(top[i] - pivot) / total if top[i] > -np.inf else 0.0


@quick
def _largest(row: Float32) -> np.float32:
    largest = np.float32(-np.inf)
    for v in range(row.shape[0]):
        largest = row[v] if row[v] > largest else largest
    return largest
