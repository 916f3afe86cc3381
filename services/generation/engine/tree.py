"""The token tree, the rows of one sequence in one pass, and the walk along the tokens that the target samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Node i is tokens[i] below node parents[i] < i; node 0 is the root, a committed token, with parent -1.

    `predicted` are the nodes that were copied from the text that the caller expects. They are counted, nothing else.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    predicted: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents) or not self.tokens:
            raise ValueError(
                f"{len(self.tokens)} tokens with {len(self.parents)} parents; expected as many, at least one"
            )
        if self.parents[0] != -1 or any(not 0 <= parent < i for i, parent in enumerate(self.parents) if i):
            raise ValueError("parents: expected -1 for the root and an earlier node for every other")

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def root(cls, token: int) -> TokenTree:
        return cls((token,), (-1,))

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> TokenTree:
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)))

    def child(self, node: int, token: int) -> int | None:
        """The first child of `node` that holds `token`."""
        for i in range(node + 1, len(self.tokens)):
            if self.parents[i] == node and self.tokens[i] == token:
                return i
        return None

    def depths(self) -> list[int]:
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def cut(self, nodes: int, depth: int, vocab_size: int) -> TokenTree:
        """This tree without what a pass cannot take: nodes past a count or a depth, or unknown to the vocabulary.

        Returns the tree itself if nothing has to go. Node numbers change where something before them went.
        """
        depths = self.depths()
        if len(self) <= nodes and max(depths) <= depth and all(0 <= token < vocab_size for token in self.tokens):
            return self
        kept: dict[int, int] = {}
        for i, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            fits = len(kept) < nodes and depths[i] <= depth and 0 <= token < vocab_size
            if i == 0 or (fits and parent in kept):
                kept[i] = len(kept)
        parents = tuple(kept.get(self.parents[i], -1) for i in kept)
        predicted = frozenset(kept[i] for i in self.predicted if i in kept)
        return TokenTree(tuple(self.tokens[i] for i in kept), parents, predicted)


def walk(tree: TokenTree, emit: Callable[[int], int | None]) -> list[int]:
    """Sample at the root, follow the child that holds the sample, and so on; returns the nodes visited, the root first.

    `emit(node)` samples from the node's row, commits the token and returns it, or None when the sequence has ended with
    it. A path of n nodes emitted n tokens: n - 1 drafted ones and the target's own at the end, which is missing if the
    last row allows none.
    """
    path = [0]
    while (token := emit(path[-1])) is not None:
        child = tree.child(path[-1], token)
        if child is None:
            break
        path.append(child)
    return path
