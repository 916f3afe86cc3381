"""Experts (Shazeer et al. 2017): MLPs of which every row takes a few, as a model's configuration has them."""

from __future__ import annotations

from dataclasses import dataclass

MOST_EXPERTS = 4096  # of a layer: eight times what any published model has; each is described before a weight is read


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Modules of a layer: the router, and those of one expert with its number for {}."""

    router: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class Experts:
    """`chosen` of `count` experts compute a row; each has `size` inner activations."""

    names: ExpertNames
    layers: tuple[bool, ...]  # which have experts in place of one MLP
    count: int
    chosen: int
    size: int
    normalised: bool  # shares of the chosen sum to one, not those of all
