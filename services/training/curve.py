"""Held-out acceptance over the tokens that a head has seen: a line a checkpoint, and when to stop."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from services.training.kscore import Measured

CURVE_FILE = "acceptance.jsonl"

_PATIENCE = 6  # checkpoints
_SETTLED = 0.5  # of the learning rate
_LEAST_RISE = 0.01  # tokens a pass: what 32 held-out answers can tell apart


@dataclass(frozen=True, slots=True)
class Point:
    """What a head drafts after so many tokens."""

    tokens: int  # starts of drafts that it has learned from, repeated ones counted again
    steps: int
    mean_length: float  # tokens a pass on held-out prompts, the target's own included
    by_depth: tuple[float, ...]  # share of drafts whose token at that depth was accepted

    @classmethod
    def of(cls, tokens: int, steps: int, found: Measured) -> Point:
        shares = tuple(round(share, 4) for share in found.acceptance_by_depth)
        return cls(tokens, steps, round(found.mean_acceptance_length, 4), shares)


class Curve:
    """The points of a run in a folder, in the order in which they came."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = folder / CURVE_FILE
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.points = [Point(**{**entry, "by_depth": tuple(entry["by_depth"])}) for entry in map(json.loads, lines)]

    def add(self, point: Point) -> None:
        """Points of steps that a crash undid are replaced: the run goes over them again."""
        self.points = [*(each for each in self.points if each.steps < point.steps), point]
        self.write(self._folder)

    def write(self, folder: Path) -> None:
        lines = "".join(json.dumps(asdict(point)) + "\n" for point in self.points)
        (folder / CURVE_FILE).write_text(lines, encoding="utf-8")

    def is_over(self, rate: float) -> bool:
        """Whether the last checkpoints brought nothing that those before them had not, at this share of the learning
        rate. While it is high a plateau says nothing: most of a head's rise comes as it falls.
        """
        lengths = [point.mean_length for point in self.points]
        before, lately = lengths[:-_PATIENCE], lengths[-_PATIENCE:]
        return rate < _SETTLED and bool(before) and max(lately) < max(before) + _LEAST_RISE
