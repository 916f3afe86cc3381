"""The rows of one pass of the head: entries of committed tokens, or draft entries below them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.generation.drafting.eagle3.draft import Eagle3Draft
from services.generation.target.rows import Rows


class Entries:
    """Collects entries of several sequences. A sequence's line is its place in `drafts`; tables may not grow."""

    def __init__(self, drafts: Sequence[Eagle3Draft]) -> None:
        self._tables = np.zeros((len(drafts), max(len(draft.table) for draft in drafts)), np.int32)
        for line, draft in enumerate(drafts):
            self._tables[line, : len(draft.table)] = draft.table
        self._adapters = np.full(len(drafts), -1, np.int32)
        self.clear()

    def clear(self) -> None:
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._slots: list[int] = []
        self._lines: list[int] = []
        self._contiguous: list[int] = []
        self._branch_starts: list[int] = [0]
        self._branches: list[int] = []
        self._wanted: list[int] = []

    def add_waiting(self, line: int, draft: Eagle3Draft, *, wanted: bool) -> None:
        """The entries of all features that wait; what follows the last of them is wanted or not."""
        entries = range(draft.length, draft.length + draft.waiting)
        self._tokens += draft.tokens
        self._positions += entries
        self._slots += [draft.slot(entry) for entry in entries]
        self._lines += [line] * draft.waiting
        self._contiguous += [entry + 1 for entry in entries]
        self._branch_starts += [len(self._branches)] * draft.waiting
        if wanted:
            self._wanted.append(len(self._tokens) - 1)

    def add_node(self, line: int, draft: Eagle3Draft, node: int, parent: int, token: int, depth: int) -> None:
        """The entry of a draft node `depth` tokens below the root, fed with the state after its parent."""
        slot, run, branches = draft.place(node, parent)
        self._tokens.append(token)
        self._positions.append(draft.length + depth - 1)
        self._slots.append(slot)
        self._lines.append(line)
        self._contiguous.append(run)
        self._branches += branches
        self._branch_starts.append(len(self._branches))
        self._wanted.append(len(self._tokens) - 1)

    def rows(self) -> Rows:
        places = np.array([self._positions, self._slots, self._lines, self._contiguous], np.int32)
        return Rows(
            tokens=np.array(self._tokens, np.int64),
            positions=places[0],
            slots=places[1],
            sequences=places[2],
            contiguous=places[3],
            branch_starts=np.array(self._branch_starts, np.int32),
            branches=np.array(self._branches, np.int32),
            tables=self._tables,
            adapters=self._adapters,
            wanted=np.array(self._wanted, np.int32),
        )
