"""Suffix arrays (Manber & Myers 1993), searched by compiled code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.relaxed import relaxed

Tokens = NDArray[np.uint16] | NDArray[np.uint32]
Int64 = NDArray[np.int64]


@relaxed
def _compare(tokens: Tokens, at: int, pattern: Int64) -> int:
    """Compare the suffix at `at`, cut to the pattern's length, with the pattern: negative, 0 or positive."""
    for i in range(pattern.shape[0]):
        if at + i >= tokens.shape[0]:
            return -1
        difference = np.int64(tokens[at + i]) - pattern[i]
        if difference != 0:
            return -1 if difference < 0 else 1
    return 0


@relaxed
def _edge(tokens: Tokens, suffixes: NDArray[np.int32], edges: Int64, token: int) -> int:
    """The first of `suffixes` that begins with `token` or a greater one, looked for once."""
    if token < 0:
        return 0
    if token >= edges.shape[0]:
        return len(suffixes)
    if edges[token] < 0:
        low, high = 0, suffixes.shape[0]
        while low < high:
            middle = (low + high) // 2
            if tokens[suffixes[middle]] < token:
                low = middle + 1
            else:
                high = middle
        edges[token] = low
    return int(edges[token])


@relaxed
def _first(tokens: Tokens, suffixes: NDArray[np.int32], edges: Int64, pattern: Int64) -> int:
    """The first of `suffixes` that is not below `pattern`."""
    low = _edge(tokens, suffixes, edges, pattern[0])
    high = _edge(tokens, suffixes, edges, pattern[0] + 1)
    while low < high:
        middle = (low + high) // 2
        if _compare(tokens, suffixes[middle], pattern) < 0:
            low = middle + 1
        else:
            high = middle
    return low


@relaxed
def range_of(tokens: Tokens, suffixes: NDArray[np.int32], edges: Int64, pattern: Int64) -> tuple[int, int]:
    """The run of `suffixes` that begin with `pattern`; its end is sought near its beginning first, most are short."""
    first, size, step = _first(tokens, suffixes, edges, pattern), suffixes.shape[0], 1
    if first == size or _compare(tokens, suffixes[first], pattern) != 0:
        return first, first
    low = first
    while low + step < size and _compare(tokens, suffixes[low + step], pattern) == 0:
        low += step
        step *= 2
    high = min(low + step, size)
    while low < high:
        middle = (low + high) // 2
        if _compare(tokens, suffixes[middle], pattern) <= 0:
            low = middle + 1
        else:
            high = middle
    return first, low


@relaxed
def longest_end(tokens: Tokens, suffixes: NDArray[np.int32], edges: Int64, context: Int64, most: int) -> int:
    """Tokens of the longest end of `context` that occurs, by halving: where an end occurs, so do the shorter ones."""
    size = context.shape[0]
    low, high = 0, min(most, size)
    while low < high:
        middle = (low + high + 1) // 2
        first = _first(tokens, suffixes, edges, context[size - middle :])
        if first < suffixes.shape[0] and _compare(tokens, suffixes[first], context[size - middle :]) == 0:
            low = middle
        else:
            high = middle - 1
    return low
