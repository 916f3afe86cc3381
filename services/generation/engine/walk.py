"""The walk: which path of a token tree the target itself would have taken."""

from __future__ import annotations

from collections.abc import Callable

from services.generation.engine.tree import TokenTree


def walk(tree: TokenTree, emit: Callable[[int], int | None]) -> list[int]:
    """Sample at the root, follow the child that holds the sample, and so on; returns the nodes visited, the root first.

    `emit(node)` samples from the node's row, commits the token and returns it, or None when the sequence has ended with
    it. A path of n nodes emitted n tokens: n - 1 drafted ones and the target's own at the end.
    """
    path = [0]
    while (token := emit(path[-1])) is not None:
        child = tree.child(path[-1], token)
        if child is None:
            break
        path.append(child)
    return path
