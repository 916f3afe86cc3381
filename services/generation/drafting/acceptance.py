"""How often draft tokens hold: the one estimate of acceptance, by kind of proposal.

A kind is a source and its circumstances. Kinds of copied tokens differ by source, by length of the match and by rank
among the copies of the same place. Kinds of a model's tokens differ by the model's probability, by depth, and by
whether earlier text has the same.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from services.generation.engine.economics import EVIDENCE, MEMORY, SHARED_MEMORY, TEMPERATURE_BANDS
from services.generation.engine.numba_cache import relaxed
from services.generation.engine.request import EngineRequest
from services.generation.target.arrays import Bools, Float64, Int64

PREDICTED, OWN, NEAR, PAST, WINDOW, RETOKENIZED = range(6)
"""Sources of copies: what the caller expects, the request's own text, a passage near it, the tenant's past outputs, a
Jacobi window, the words of a model with another tokenizer, by their depth in place of a match's length.
"""

_LENGTHS = np.array((1, 2, 3, 5, 8))
"""Tokens of matches up to which classes of length reach; longer matches are in the last class."""
_COPY_PRIORS = np.array((
    (0.40, 0.60, 0.75, 0.85, 0.93, 0.97),
    (0.22, 0.36, 0.52, 0.68, 0.85, 0.93), (0.15, 0.25, 0.35, 0.55, 0.75, 0.90), (0.15, 0.25, 0.35, 0.55, 0.75, 0.90),
    (0.15, 0.25, 0.35, 0.55, 0.75, 0.90), (0.50, 0.50, 0.50, 0.50, 0.50, 0.50),
))  # fmt: skip
"""[sources, classes of length] acceptance of copies before any was judged, as measured on the demo's questions."""
_RANKS = np.array((1.0, 0.35, 0.1))
"""Factors on that by rank among the copies of a place; the last one is for all further ranks."""
_EDGES = np.array((0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995))
"""Shares of a model's probability between classes, of which each is expected to be accepted by its middle at first."""
_AGREED = 0.35
"""Power that a share is raised to for a token that is a copy as well: two sources agree."""
_FIRST_CHOICE = 0.6
"""Acceptance of a model's first choice before any was judged, as of the demo's head."""
_DEEPEST = 8
"""Depths with rates of their own; deeper tokens count with the last, for few are drafted."""

_BORDERS = np.concatenate([[0.0], _EDGES, [1.0]])
_SHARES = (_BORDERS[:-1] + _BORDERS[1:]) / 2
_MODEL = _COPY_PRIORS.size * len(_RANKS)  # the first kind of the group; the first kind of copies is 0
_FIRST_CHOICES = _MODEL + 2 * len(_SHARES) * _DEEPEST
_PRIORS = np.concatenate([
    np.multiply.outer(_COPY_PRIORS, _RANKS).ravel(),
    np.repeat([_SHARES, _SHARES**_AGREED], _DEEPEST), np.full(_DEEPEST, _FIRST_CHOICE),
])  # [kinds] the acceptance expected before any was judged  # fmt: skip


class Acceptance:
    """Acceptance of one drafter's tokens. Requests of one adapter and band of temperatures share counts, never text."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str | None, int], Float64] = {}

    def begin(self, request: EngineRequest) -> RequestAcceptance:
        """Counts for one request, which uses the shared ones until it has enough of its own."""
        kind = request.adapter, bisect_left(TEMPERATURE_BANDS, request.sampling.temperature)
        return RequestAcceptance(self._shared.setdefault(kind, np.zeros((len(_PRIORS), 2))))


class RequestAcceptance:
    """Probability that a draft token is accepted, given that its parent was."""

    def __init__(self, shared: Float64 | None = None) -> None:
        """`shared` [kinds, (accepted, tried)] are counts of other requests; without it, counts begin at 0."""
        self._shared = np.zeros((len(_PRIORS), 2)) if shared is None else shared
        self._own = np.zeros_like(self._shared)

    def rates(self) -> Float64:
        """[kinds], as of now."""
        return _blended(_PRIORS, self._shared, self._own)

    def record(self, kinds: Int64, held: Bools) -> None:
        """Tokens whose parents were emitted held or not; both [any]."""
        _record(self._shared, kinds, held, SHARED_MEMORY)
        _record(self._own, kinds, held, MEMORY)


@relaxed
def copy_kind(source: int, length: int, rank: int) -> int:
    """The kind of a copy after a match of `length` tokens, the tokens of the copy above it included."""
    number = 0
    while number < len(_LENGTHS) and length > _LENGTHS[number]:
        number += 1
    kind: int = (source * _COPY_PRIORS.shape[1] + number) * len(_RANKS) + min(rank, len(_RANKS) - 1)
    return kind


@relaxed
def model_kind(agreed: int, share: float, depth: int) -> int:
    """The kind of a token that a model gave this share; `agreed` is 1 if earlier text has it too."""
    number = 0
    while number < len(_EDGES) and share >= _EDGES[number]:
        number += 1
    return _MODEL + (agreed * len(_SHARES) + number) * _DEEPEST + min(depth, _DEEPEST) - 1


@relaxed
def first_choice_kind(depth: int) -> int:
    """The kind of a model's first choice."""
    return _FIRST_CHOICES + min(depth, _DEEPEST) - 1


@relaxed
def _blended(priors: Float64, shared: Float64, own: Float64) -> Float64:
    rates = np.empty(len(priors))
    for kind in range(len(priors)):
        rate = (shared[kind, 0] + EVIDENCE * priors[kind]) / (shared[kind, 1] + EVIDENCE)
        rates[kind] = (own[kind, 0] + EVIDENCE * rate) / (own[kind, 1] + EVIDENCE)
    return rates


@relaxed
def _record(counts: Float64, kinds: Int64, held: Bools, memory: float) -> None:
    for i in range(len(kinds)):
        kept, seen = counts[kinds[i], 0] * memory, counts[kinds[i], 1] * memory
        counts[kinds[i], 0] = kept + (1.0 if held[i] else 0.0)
        counts[kinds[i], 1] = seen + 1.0
