"""The rows of one pass: which tokens are computed, where their keys go, and which keys each of them sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from services.generation.target.arrays import Int32, Int64
from services.generation.target.blocks import BLOCK

PARTS = (
    "positions", "lengths", "slots", "sequences", "contiguous", "branch_starts", "tables", "adapters", "wanted_rows",
    "branches",
)  # fmt: skip
"""What is said of rows beside their tokens, in the order in which it lies in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One pass over `n` rows of `s` sequences. A slot is block * BLOCK + offset in the key/value pool.

    tokens [n] int64; all else int32, one part behind the other in `numbers`, each up to its end, so that one address
    tells the kernels where all are. A row sees `lengths` positions: the first `contiguous` slots of its sequence's
    table, then those of its `branches`, ancestors in the token tree that do not lie in one run with the committed
    tokens, itself last. The last position that a row of a target sees is its own.
    """

    tokens: Int64
    numbers: Int32
    ends: tuple[int, ...]
    tabled: int  # sequences that have a table

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def empty(cls, count: int, tables: Sequence[Sequence[int] | Int32], branches: int) -> Rows:
        """`count` rows that are to be filled in, all of them wanted; `branches`: room for slots of branches."""
        most = max(map(len, tables), default=0)
        sizes = (*[count] * 5, count + 1, len(tables) * most, 0, count, branches)
        ends = tuple(accumulate(sizes))
        rows = cls(np.empty(count, np.int64), np.zeros(ends[-1], np.int32), ends, len(tables))
        lines = rows.tables
        for line, table in enumerate(tables):
            lines[line, : len(table)] = table
        rows.wanted[:] = np.arange(count)
        return rows

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each part begins in `numbers`."""
        return (0, *self.ends[:-1])

    def _part(self, place: int) -> Int32:
        return self.numbers[self.ends[place - 1] if place else 0 : self.ends[place]]

    @property
    def positions(self) -> Int32:
        """[n] absolute position of the token, by which it is rotated"""
        return self._part(0)

    @property
    def lengths(self) -> Int32:
        """[n]"""
        return self._part(1)

    @property
    def slots(self) -> Int32:
        """[n] where its key and value are stored"""
        return self._part(2)

    @property
    def sequences(self) -> Int32:
        """[n] its line in tables"""
        return self._part(3)

    @property
    def contiguous(self) -> Int32:
        """[n]"""
        return self._part(4)

    @property
    def branch_starts(self) -> Int32:
        """[n + 1]"""
        return self._part(5)

    @property
    def tables(self) -> Int32:
        """[s, most blocks] block table of each sequence, short ones padded with 0"""
        part = self._part(6)
        return part.reshape(self.tabled, len(part) // max(self.tabled, 1))

    @property
    def adapter_slots(self) -> Int32 | None:
        """[n] index of a row's adapter among the target's, -1 for none; None: no row has one"""
        part = self._part(7)
        return part if len(part) else None

    @property
    def wanted(self) -> Int32:
        """rows whose logits are wanted"""
        return self._part(8)

    @property
    def branches(self) -> Int32:
        """[branch_starts[n]] slots"""
        return self._part(9)

    def part(self, first: int, last: int) -> Rows:
        """Rows [first, last) as a pass of their own. Rows before them in their sequence must have been computed."""
        cut, starts = slice(first, last), self.branch_starts[first : last + 1]
        wanted = self.wanted[(self.wanted >= first) & (self.wanted < last)] - first
        parts = [
            *(each[cut] for each in (self.positions, self.lengths, self.slots, self.sequences, self.contiguous)),
            starts - starts[0], self._part(6), self._part(7)[cut], wanted, self.branches[starts[0] : starts[-1]],
        ]  # fmt: skip
        numbers = np.concatenate(parts).astype(np.int32)
        return Rows(self.tokens[cut].copy(), numbers, tuple(accumulate(map(len, parts))), self.tabled)


class RowsBuilder:
    """Collects the rows of a pass, sequence by sequence."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._lengths: list[int] = []
        self._slots: list[int] = []
        self._sequences: list[int] = []
        self._contiguous: list[int] = []
        self._branch_starts: list[int] = [0]
        self._branches: list[int] = []
        self._tables: list[Sequence[int]] = []
        self._adapters: list[int] = []
        self._wanted: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def add_tree(
        self, table: Sequence[int], length: int, tokens: Sequence[int], parents: Sequence[int], adapter: int = -1
    ) -> None:
        """Add a token tree under a sequence of `length` cached tokens; every node's logits are wanted.

        Node i has tokens[i] and parent parents[i] < i (the root, node 0, has -1). It is stored in the sequence's slot
        length + i, which need not be its position: the path that is accepted is moved into place after the walk.
        """
        line, first = len(self._tables), len(self._tokens)
        self._tables.append(table)
        self._adapters.append(adapter)
        depths: list[int] = []
        runs: list[int] = []  # nodes 0..runs[i]-1 are the first ancestors of node i (itself included)
        rest: list[list[int]] = []  # the slots of its other ancestors, itself last
        for i, parent in enumerate(parents):
            slot = table[(length + i) // BLOCK] * BLOCK + (length + i) % BLOCK
            depth = 0 if parent < 0 else depths[parent] + 1
            depths.append(depth)
            straight = depth == i
            runs.append(i + 1 if straight else runs[parent])
            rest.append([] if straight else [*rest[parent], slot])
            self._positions.append(length + depth)
            self._lengths.append(length + depth + 1)
            self._slots.append(slot)
            self._contiguous.append(length + runs[i])
            self._branches += rest[i]
            self._branch_starts.append(len(self._branches))
        self._tokens += tokens
        self._sequences += [line] * len(tokens)
        self._wanted += range(first, first + len(tokens))

    def add_chunk(
        self, table: Sequence[int], length: int, tokens: Sequence[int], want_last: bool, adapter: int = -1
    ) -> None:
        """Add the next tokens of a prompt; logits are wanted of the last one or of none."""
        self._add_run(table, length, tokens, range(length + 1, length + len(tokens) + 1), adapter)
        if want_last:
            self._wanted.append(len(self._tokens) - 1)

    def add_block(self, table: Sequence[int], length: int, tokens: Sequence[int], *, want_first: bool = True) -> None:
        """Add tokens behind `length` cached ones that all see each other; logits are wanted of all, or of all but the
        first.
        """
        first, end = len(self._tokens), length + len(tokens)
        self._add_run(table, length, tokens, [end] * len(tokens), adapter=-1)
        self._wanted += range(first + (not want_first), first + len(tokens))

    def _add_run(
        self, table: Sequence[int], length: int, tokens: Sequence[int], lengths: Sequence[int], adapter: int
    ) -> None:
        """Add tokens in the slots of their positions, from `length` on."""
        line, positions = len(self._tables), range(length, length + len(tokens))
        self._tables.append(table)
        self._adapters.append(adapter)
        self._positions += positions
        self._lengths += lengths
        self._slots += [table[p // BLOCK] * BLOCK + p % BLOCK for p in positions]
        self._contiguous += lengths
        self._branch_starts += [len(self._branches)] * len(tokens)
        self._tokens += tokens
        self._sequences += [line] * len(tokens)

    def build(self) -> Rows:
        most = max(map(len, self._tables), default=0)
        tables = [number for table in self._tables for number in (*table, *[0] * (most - len(table)))]
        adapted = any(adapter >= 0 for adapter in self._adapters)
        parts = (
            self._positions, self._lengths, self._slots, self._sequences, self._contiguous, self._branch_starts,
            tables, [self._adapters[line] for line in self._sequences] if adapted else [], self._wanted,
            self._branches,
        )  # fmt: skip
        ends = tuple(accumulate(map(len, parts)))
        numbers = np.fromiter(chain.from_iterable(parts), np.int32, ends[-1])
        return Rows(np.array(self._tokens, np.int64), numbers, ends, len(self._tables))
