"""A shard as an n-gram model: drafts, node by node, the tokens that followed the longest suffixes of a text.

REST (He et al., NAACL 2024) drafts the continuations of the longest suffix that occurs. Most texts have no long match,
and all have short matches. Tokens that followed shorter suffixes rank lower, by their counts (Brants et al. 2007,
"stupid backoff").
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.acceptance import model_kind
from services.generation.drafting.draft_tree.candidates import Samplings
from services.generation.drafting.draft_tree.nodes import NONE, Bounds, Nodes, child
from services.generation.engine.numba_cache import relaxed
from services.generation.engine.sampling.race import gumbel
from services.generation.target.arrays import Float64, Int32, Int64, UInt32

Tokens = NDArray[np.uint16] | UInt32
LONGEST = 16  # tokens of a suffix
WIDTH = 8  # most tokens below a node
_SHORT = 3  # tokens of the longest suffix examined after the longest that occurs
_LOOKED_AT = 32  # occurrences of a suffix, at even distances in the suffix array
_MOST_EXPANDED = 32  # nodes


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
def _edge(tokens: Tokens, suffixes: Int32, edges: Int64, token: int) -> int:
    """The first of `suffixes` that begins with `token` or a greater token, cached."""
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
def _first(tokens: Tokens, suffixes: Int32, edges: Int64, pattern: Int64) -> int:
    """The first of `suffixes` that is at least `pattern`."""
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
def range_of(tokens: Tokens, suffixes: Int32, edges: Int64, pattern: Int64) -> tuple[int, int]:
    """The run of `suffixes` that begin with `pattern`; its end is searched from its beginning, since most are short."""
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
def longest_end(tokens: Tokens, suffixes: Int32, edges: Int64, context: Int64, most: int) -> int:
    """Length of the longest suffix of `context` that occurs, by bisection: shorter suffixes of it occur too."""
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


class Suffixes(NamedTuple):
    """A `Shard`'s arrays, for compiled code."""

    tokens: NDArray[np.uint16] | UInt32
    suffixes: Int32
    edges: Int64
    separator: int


@relaxed
def expand(
    nodes: Nodes, count: int, shard: Suffixes, end: Int64, sampling: Samplings, bounds: Bounds, rates: Float64
) -> int:
    """Add continuations below the likeliest nodes with an acceptance probability of at least `bounds.least`. Returns
    the new number of nodes.

    `end` [any]: the last tokens of the text, including the root. A token from several sources has the highest of their
    probabilities. `sampling` [1]: of the token below the root; at temperatures above 0 continuations are drawn with the
    noise of the target's sampler.
    """
    context, tokens, shares = np.empty(LONGEST, np.int64), np.empty(WIDTH, np.int64), np.empty(WIDTH, np.float64)
    waiting = np.ones(len(nodes), np.bool_)
    for _ in range(_MOST_EXPANDED):
        parent = -1
        for node in range(count):
            likelier = parent < 0 or nodes[node].chance > nodes[parent].chance
            if waiting[node] and nodes[node].depth < bounds.depth and likelier:
                parent = node
        if parent < 0 or count + WIDTH > len(nodes) or (parent > 0 and nodes[parent].chance < bounds.least):
            break
        waiting[parent] = False
        found = _following(shard, _context(nodes, parent, end, context, shard.separator), tokens, shares)
        if found > 0 and sampling[0].temperature > 0.0:
            _draw(tokens[:found], shares[:found], sampling[0], nodes[parent].depth)
        for place in range(found):
            kind = model_kind(0, shares[place], 1)  # a share means the same at every depth: all count at depth 1
            if parent > 0 and nodes[parent].chance * rates[kind] < bounds.least:
                continue
            node, count = child(nodes, count, parent, tokens[place])
            this = nodes[node]
            if this.copy != NONE:
                kind = model_kind(1, shares[place], 1)
            if this.model_kind == NONE or rates[kind] > rates[this.model_kind]:
                this.model_kind, this.rank = kind, place
            this.given = max(this.given, rates[kind])
        for node in range(parent + 1, count):
            nodes[node].chance = nodes[nodes[node].parent].chance * nodes[node].given
    return count


@relaxed
def _draw(tokens: Int64, shares: Float64, sampling: Any, depth: int) -> None:
    """Sort tokens by their noisy scores. Each token's share becomes its probability to win.

    All tokens without an occurrence have one best score: Gumbel noise on the logarithm of their remaining share.
    """
    unseen = max(1.0 - shares.sum(), 0.0)
    for i in range(len(tokens)):
        noise = gumbel(sampling.seed, sampling.choice, sampling.position + depth, tokens[i])
        shares[i] = np.log(shares[i]) / sampling.temperature + noise
    order = np.argsort(-shares)
    best = shares[order[0]]
    tokens[:], shares[:] = tokens[order], np.exp(shares[order] - best)
    shares *= np.exp(-unseen * np.exp(-best)) / shares.sum()


@relaxed
def _context(nodes: Nodes, node: int, end: Int64, context: Int64, separator: int) -> Int64:
    """The last tokens of the text and the path to a node, back to the last token outside of the shard's vocabulary."""
    at = LONGEST
    while node > 0 and at > 0:
        at -= 1
        context[at] = nodes[node].token
        node = nodes[node].parent
    before = len(end)
    while at > 0 and before > 0:
        at, before = at - 1, before - 1
        context[at] = end[before]
    for place in range(LONGEST - 1, at - 1, -1):
        if context[place] >= separator:  # a base may have ids outside of its tokenizer
            return context[place + 1 :]
    return context[at:]


@relaxed
def _following(shard: Suffixes, context: Int64, tokens: Int64, shares: Float64) -> int:
    """Fill in the tokens that follow suffixes of the context, once each, with their shares of the occurrences. Longer
    suffixes come first, and within a suffix the most frequent tokens. Returns their count.

    A new token counts as one more occurrence, and as less for a longer suffix.
    """
    size, found = len(context), 0
    length = longest_end(shard.tokens, shard.suffixes, shard.edges, context, LONGEST)
    while length > 0 and found < WIDTH:
        first, last = range_of(shard.tokens, shard.suffixes, shard.edges, context[size - length :])
        looked_at = min(last - first, _LOOKED_AT)
        kept, run, token = found, 0, np.int64(-1)
        for i in range(looked_at + 1):  # suffixes with the same next token are adjacent
            following = np.int64(-1)
            if i < looked_at:
                at = np.int64(shard.suffixes[first + i * (last - first) // looked_at]) + length
                following = np.int64(shard.tokens[at]) if at < len(shard.tokens) else np.int64(shard.separator)
            if following == token:
                run += 1
                continue
            if 0 <= token < shard.separator:
                found = _insert(tokens, shares, kept, found, int(token), run / (looked_at + 1.0 / length))
            token, run = following, 1
        length = min(length - 1, _SHORT)
    return found


@relaxed
def _insert(tokens: Int64, shares: Float64, kept: int, found: int, token: int, share: float) -> int:
    """Sort the tokens from `kept` on by falling share, and drop tokens that occur before `kept`."""
    for place in range(kept):
        if tokens[place] == token:
            return found
    at = found
    while at > kept and shares[at - 1] < share:
        at -= 1
    if at == len(tokens):
        return found
    for place in range(min(found, len(tokens) - 1), at, -1):
        tokens[place], shares[place] = tokens[place - 1], shares[place - 1]
    tokens[at], shares[at] = token, share
    return min(found + 1, len(tokens))
