"""Held-out acceptance over the tokens that a head has seen: a line a checkpoint, a plot beside it, and when to stop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from services.training.kscore import Measured

CURVE_FILE, PLOT_FILE = "acceptance.jsonl", "acceptance.svg"

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
        """Numbers and plot."""
        lines = "".join(json.dumps(asdict(point)) + "\n" for point in self.points)
        (folder / CURVE_FILE).write_text(lines, encoding="utf-8")
        (folder / PLOT_FILE).write_text(plot(self.points), encoding="utf-8")

    def is_over(self, rate: float) -> bool:
        """Whether the last checkpoints brought nothing that those before them had not, at this share of the learning
        rate. While it is high a plateau says nothing: most of a head's rise comes as it falls.
        """
        lengths = [point.mean_length for point in self.points]
        before, lately = lengths[:-_PATIENCE], lengths[-_PATIENCE:]
        return rate < _SETTLED and bool(before) and max(lately) < max(before) + _LEAST_RISE


_WIDTH, _HEIGHT, _MARGIN = 640, 320, 48
_COLOURS = ("#1b6ca8", "#2a9d8f", "#8ab17d", "#e9a23b", "#e76f51", "#9b5de5", "#6c757d")


def plot(points: Sequence[Point]) -> str:
    """An SVG: acceptance by depth, from 0 to 1, over tokens."""
    most = max((point.tokens for point in points), default=0) or 1
    depths = max((len(point.by_depth) for point in points), default=0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _across(share)
        parts.append(f'<path d="M{_MARGIN} {y:.1f}H{_WIDTH - _MARGIN}" stroke="#ddd"/>')
        parts.append(_text(8, y + 4, f"{share:.0%}"))
    for depth in range(depths):
        colour = _COLOURS[depth % len(_COLOURS)]
        places = [
            f"{_along(point.tokens / most):.1f},{_across(point.by_depth[depth]):.1f}"
            for point in points
            if depth < len(point.by_depth)
        ]
        parts.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(_WIDTH - _MARGIN + 4, float(places[-1].split(",")[1]) + 4, f"depth {depth + 1}"))
    last = f", {points[-1].mean_length:.2f} tokens a pass" if points else ""
    parts.append(_text(_MARGIN, _HEIGHT - 12, f"held-out acceptance over {most:,} tokens{last}"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _along(share: float) -> float:
    return _MARGIN + share * (_WIDTH - 2 * _MARGIN)


def _across(share: float) -> float:
    return _HEIGHT - _MARGIN - share * (_HEIGHT - 1.5 * _MARGIN)


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#333">{escape(text)}</text>'
