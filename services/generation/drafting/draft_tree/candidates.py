"""The candidates that a draft model's logits give: the likeliest tokens, drawn with the noise of the target's sampler.

A model that has the target's own logits draws the target's token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.draft_tree.nodes import (
    MOST_COPIED,
    NONE,
    Growth,
    Level,
    Nodes,
    add_level,
    copies_below,
)
from services.generation.engine.drafter import Budget
from services.generation.engine.economics import Economics
from services.generation.engine.numba_cache import relaxed
from services.generation.engine.request import EngineRequest
from services.generation.engine.sampling.race import exp64, key_of, log_of_normal, value_of, word_of
from services.generation.target.arrays import Float32, Float64, Int64

DEPTH, WIDTH = 16, 4
"""Bounds of a tree in tokens if a request names none: its depth, and the children of a node, of which as many are
expanded at each depth. Costs end most trees long before.
"""


@dataclass(frozen=True, slots=True)
class DraftShape:
    """Bounds of a draft tree. Nodes are verified if their probability pays for their row.

    Each expanded node gets `width` children, and `width` nodes are expanded at each depth: 1 is a chain.
    """

    depth: int = DEPTH
    width: int = WIDTH
    tree_tokens: int = MOST_COPIED  # draft tokens verified at most

    def within(self, budget: Budget) -> DraftShape:
        return DraftShape(min(self.depth, budget.depth), self.width, min(self.tree_tokens, budget.nodes))

    def for_request(self, request: EngineRequest, width: str) -> DraftShape:
        """The shape by a request's parameters; `width` is the name of the parameter for the width."""
        asked = request.parameters
        return DraftShape(
            self.depth if request.k is None else request.k,
            asked.get(width, self.width),
            asked.get("tree_tokens", self.tree_tokens),
        )


_GROUP = 128  # values that are counted before they are looked at one by one
_INFINITY = np.int32(0x7F800000)
_NO_OCTAVE = np.int64(0)


@relaxed
def largest(row: Float32) -> np.float32:
    """The largest value that is a number; -inf without one above that."""
    bits, best = row.view(np.int32), -_INFINITY
    for i in range(bits.shape[0]):
        key = key_of(bits[i])
        key = key if key <= _INFINITY else -_INFINITY
        best = key if key > best else best
    return np.float32(value_of(best))


@relaxed
def above(row: Float32, limit: np.float32, places: Int64) -> int:
    """Write where the row is above `limit` into `places`, ascending, and return how many these are."""
    found = 0
    for start in range(0, row.shape[0], _GROUP):
        group = row[start : start + _GROUP]
        count = np.int32(0)
        for i in range(group.shape[0]):
            count += np.int32(group[i] > limit)
        if count:
            for i in range(group.shape[0]):
                if group[i] > limit:
                    places[found] = start + i
                    found += 1
    return found


_REACH = 10.0  # nats below the best: tokens further down get no noise, for it would have to be rarer than e^-10

SAMPLING = np.dtype(
    [
        ("temperature", np.float64), ("top_k", np.float64), ("top_p", np.float64), ("min_p", np.float64),
        ("seed", np.uint64), ("choice", np.int32), ("position", np.int32), ("noise", np.float64),
    ],
    align=True,
)  # fmt: skip
"""How the token at a position is sampled; `noise`: how much of the sampler's own noise a model draws with."""
Samplings = NDArray[Any]  # of dtype SAMPLING


HEAD_NOISE = 0.8
"""How much of the noise a head draws with. All of it is right for a model that knows the target's logits. A head does
not: its scores are too flat, and at T = 1 its first token held 39.5 % of the time with all of the noise, 37.3 % without
and 42.7 % with this much (T = 0.7: 53.6, 51.8 and 55.1 %; 400 tokens of answers of SmolLM2-135M, four draws each).
"""


class Vocabulary(NamedTuple):
    """The target's id of each of a model's tokens, and back: -1 if the model has none."""

    target_ids: Int64
    draft_ids: Int64


def vocabulary_of(target_ids: Int64, vocab_size: int) -> Vocabulary:
    """The vocabulary of a model that drafts: `target_ids` [draft vocabulary] are the target's tokens."""
    draft_ids = np.full(vocab_size, -1, np.int64)
    draft_ids[target_ids] = np.arange(len(target_ids))
    return Vocabulary(target_ids, draft_ids)


def sampling_of(request: EngineRequest, *, noise: float = 1.0) -> Samplings:
    """The sampling of a request, [1]; its position is to be filled in."""
    sampling = request.sampling
    return np.array([(
        sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.seed, request.choice, 0, noise,
    )], SAMPLING)  # fmt: skip


MOST_ASKED = 4  # copies below a node that a model is asked about
NO_CONFIDENCE: Float32 = np.empty(0, np.float32)


class ModelOutput(NamedTuple):
    """A model's output below the nodes of a frontier, and how tokens are drawn from it."""

    logits: Float32  # [frontier, draft vocabulary]
    confidence: Float32  # [frontier] in the first tokens, or `NO_CONFIDENCE`
    vocabulary: Vocabulary
    sampling: Samplings  # [1]


@relaxed
def grow(
    nodes: Nodes, count: int, frontier: Int64, output: ModelOutput, growth: Growth, economics: Economics
) -> tuple[int, Int64]:
    """Add a model's tokens below the frontier's nodes. Returns the new number of nodes, and the next frontier."""
    level = candidates(nodes, count, frontier, output, growth.width)
    if len(output.confidence) and output.sampling[0].temperature == 0.0:
        confide(level, output.confidence)
    return add_level(nodes, count, frontier, level, growth, economics)


@relaxed
def candidates(nodes: Nodes, count: int, frontier: Int64, output: ModelOutput, width: int) -> Level:
    """The `width` likeliest tokens below each node of the frontier and their shares, and the shares of copies there.

    At a temperature above 0, a score is the logit / temperature plus `sampling.noise` times the noise that the target's
    sampler will use there: likely winners come first. Tokens that top-k, top-p and min-p remove are out. A share is the
    token's part of the softmax over these scores.
    """
    rows, logits, vocabulary, sampling = len(frontier), output.logits, output.vocabulary, output.sampling[0]
    level = Level(
        np.empty((rows, width), np.int64), np.empty((rows, width), np.float32),
        np.empty((rows, MOST_ASKED), np.int64), np.empty((rows, MOST_ASKED), np.float32),
    )  # fmt: skip
    copies_below(nodes, count, frontier, level.asked)
    places, kept = np.empty(width, np.int64), np.empty(logits.shape[1] + MOST_ASKED, np.int64)
    top, scores = np.empty(width, np.float64), np.empty(len(kept), np.float64)
    scale = 1.0 / sampling.temperature if sampling.temperature > 0.0 else 1.0
    noise = sampling.noise if sampling.temperature > 0.0 else 0.0
    for r in range(rows):
        row = logits[r]
        best = largest(row)
        limit = min(best - np.float32(_REACH / scale), np.nextafter(best, np.float32(-np.inf)))
        if sampling.temperature > 0.0:
            limit = _limit(row, scale, limit, sampling, kept)
        found = above(row, limit, kept)
        for i in range(MOST_ASKED):
            v = vocabulary.draft_ids[level.asked[r, i]] if level.asked[r, i] >= 0 else NONE
            level.asked_shares[r, i] = -1.0 if v < 0 else 0.0
            kept[found + i] = max(v, 0)
        _score(row, kept[: found + MOST_ASKED], scale, noise, sampling, vocabulary, scores)
        top[:] = -np.inf
        places[:] = 0
        for i in range(found):
            if scores[i] > top[width - 1]:
                insert(top, places, scores[i], kept[i])
        pivot, total = top[0], 0.0
        for i in range(found):
            total += exp64(scores[i] - pivot)
        for i in range(width):
            level.tokens[r, i] = vocabulary.target_ids[places[i]] if top[i] > -np.inf else NONE
            level.shares[r, i] = np.exp(top[i] - pivot) / total if top[i] > -np.inf else 0.0
        for i in range(MOST_ASKED):
            if level.asked_shares[r, i] >= 0.0:
                share = np.exp(scores[found + i] - pivot) / total
                level.asked_shares[r, i] = share if row[kept[found + i]] > limit else 0.0
    return level


@relaxed
def _score(
    row: Float32, places: Int64, scale: float, noise: float, sampling: Any, vocabulary: Vocabulary, scores: Float64
) -> None:
    """Write the scores of some tokens of a row into the first of `scores`, in loops that run in vector registers."""
    for i in range(len(places)):
        scores[i] = np.float64(row[places[i]]) * scale
    if noise > 0.0:
        seed, choice, position = sampling.seed, sampling.choice, sampling.position
        for i in range(len(places)):
            uniform = (np.float64(word_of(seed, choice, position, vocabulary.target_ids[places[i]])) + 0.5) * 2.0**-32
            scores[i] -= noise * log_of_normal(-log_of_normal(uniform, _NO_OCTAVE), _NO_OCTAVE)


@relaxed
def confide(level: Level, confidence: Float32) -> None:
    """Give the first candidate of each row [rows] the model's own confidence for a share, and the others the rest."""
    for r in range(len(confidence)):
        first = level.shares[r, 0]
        if first < 1.0:
            rest = (1.0 - confidence[r]) / (1.0 - first)
            level.shares[r, 1:] *= rest
            for i in range(MOST_ASKED):
                if level.asked_shares[r, i] > 0.0:
                    level.asked_shares[r, i] *= rest
            level.shares[r, 0] = confidence[r]


@relaxed
def insert(top: Float64, places: Int64, score: float, v: int) -> None:
    """Among the best, in place of the last: before lower ones, behind equals."""
    at = len(top) - 1
    while at > 0 and top[at - 1] < score:
        top[at], places[at] = top[at - 1], places[at - 1]
        at -= 1
    top[at], places[at] = score, v


@relaxed
def _limit(row: Float32, scale: float, least: np.float32, sampling: Any, places: Int64) -> np.float32:
    """The logit that tokens have to be above; tokens up to `least` are out. Writes into `places` [row].

    The order is min-p, top-k, top-p (`Sampler`); equals of the last token stay.
    """
    if sampling.top_k <= 0.0 and sampling.top_p >= 1.0 and sampling.min_p <= 0.0:
        return least
    falling = -np.sort(-row[places[: above(row, least, places)]])
    if len(falling) == 0:
        return least
    last = len(falling) if sampling.top_k <= 0.0 else min(len(falling), int(sampling.top_k))
    if sampling.min_p > 0.0:
        while last > 1 and (falling[last - 1] - falling[0]) * scale < np.log(sampling.min_p):
            last -= 1
    weights = np.exp((falling[:last] - falling[0]).astype(np.float64) * scale)
    if sampling.top_p < 1.0:
        enough, before, last = sampling.top_p * weights.sum(), 0.0, 0
        while last < weights.shape[0] and before < enough:
            before += weights[last]
            last += 1
    limit: np.float32 = np.nextafter(falling[last - 1], np.float32(-np.inf))
    return limit
