"""Counts of passes and drafts: of one sequence, or of all of them since the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.generation.engine.tree import TokenTree


@dataclass(slots=True)
class Counts:
    """Written on the engine's thread; a reader on another thread sees each count whole, and perhaps not all at once."""

    passes: int = 0  # that emitted at least one token
    drafts: int = 0
    draft_tokens: int = 0
    predicted_tokens: int = 0  # drafted from what the caller expects
    accepted_predicted_tokens: int = 0
    accepted_per_depth: list[int] = field(default_factory=list)
    by_method: dict[str, int] = field(default_factory=dict)  # passes; off: those without any draft

    def walked(self, method: str, tree: TokenTree, path: Sequence[int]) -> None:
        """A pass verified a tree of `method`, and the nodes of the path held."""
        drafted, accepted = len(tree) - 1, len(path) - 1
        self.passes += 1
        ran = method if drafted else "off"
        self.by_method[ran] = self.by_method.get(ran, 0) + 1
        self.drafts += drafted > 0
        self.draft_tokens += drafted
        self.predicted_tokens += len(tree.predicted)
        self.accepted_predicted_tokens += len(tree.predicted.intersection(path))
        self.accepted_per_depth += [0] * (accepted - len(self.accepted_per_depth))
        for depth in range(accepted):
            self.accepted_per_depth[depth] += 1

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted_per_depth)

    @property
    def tokens(self) -> int:
        """Tokens emitted: each pass adds the target's own to those that it accepts."""
        return self.passes + self.accepted_tokens
