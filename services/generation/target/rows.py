"""The rows of one pass: their tokens, the cache slots of their keys, and the keys that each row sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, chain

import numpy as np

from services.generation.target.arrays import Int32, Int64
from services.generation.target.blocks import BLOCK


class Part(IntEnum):
    """The int32 arrays of `Rows`, in the order in which `Rows.numbers` has them."""

    POSITIONS = 0
    LENGTHS = 1
    SLOTS = 2
    SEQUENCES = 3
    CONTIGUOUS = 4
    BRANCH_STARTS = 5
    TABLES = 6
    ADAPTER_SLOTS = 7
    WANTED_ROWS = 8
    BRANCHES = 9


class _View:
    """An attribute of `Rows`: the view of one part."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def __get__(self, rows: Rows, owner: type[Rows]) -> Int32:
        return rows.numbers[rows.ends[self._part - 1] if self._part else 0 : rows.ends[self._part]]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One pass over `n` rows of `s` sequences. A slot is block * BLOCK + offset in the key/value pool.

    A row attends to `lengths` positions: the first `contiguous` slots of its sequence's block table, then the slots in
    `branches`. A node of the token tree that is not on its first path has in `branches` its remaining ancestors, then
    itself. The last position of a target's row is its own.
    """

    tokens: Int64  # [n]
    numbers: Int32  # all parts, concatenated, so that kernels need one address
    ends: tuple[int, ...]  # of each part in `numbers`
    tabled: int  # sequences with a table

    positions = _View(Part.POSITIONS)
    """[n] absolute position of the token, by which it is rotated"""
    lengths = _View(Part.LENGTHS)
    """[n] visible positions"""
    slots = _View(Part.SLOTS)
    """[n] the slot of its key and value"""
    sequences = _View(Part.SEQUENCES)
    """[n] its line in `tables`"""
    contiguous = _View(Part.CONTIGUOUS)
    """[n] visible slots of its table"""
    branch_starts = _View(Part.BRANCH_STARTS)
    """[n + 1] the range of each row in `branches`"""
    wanted = _View(Part.WANTED_ROWS)
    """rows whose logits are wanted"""
    branches = _View(Part.BRANCHES)
    """[branch_starts[n]] slots"""
    _tables = _View(Part.TABLES)
    _adapters = _View(Part.ADAPTER_SLOTS)

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def empty(cls, count: int, tables: Sequence[Sequence[int] | Int32], branches: int) -> Rows:
        """`count` rows with wanted logits and room for `branches` slots of branches. Tokens are uninitialised;
        positions and lengths are 0.
        """
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
        """The index of each part in `numbers`."""
        return (0, *self.ends[:-1])

    @property
    def tables(self) -> Int32:
        """[s, most blocks] block table of each sequence, padded with 0"""
        part = self._tables
        return part.reshape(self.tabled, len(part) // max(self.tabled, 1))

    @property
    def adapter_slots(self) -> Int32 | None:
        """[n] index of a row's adapter among the target's, -1 for none; None if no row has an adapter"""
        part = self._adapters
        return part if len(part) else None

    def part(self, first: int, last: int) -> Rows:
        """Rows [first, last) as a separate pass, after the pass of earlier rows of their sequences."""
        cut, starts = slice(first, last), self.branch_starts[first : last + 1]
        wanted = self.wanted[(self.wanted >= first) & (self.wanted < last)] - first
        parts = [
            *(each[cut] for each in (self.positions, self.lengths, self.slots, self.sequences, self.contiguous)),
            starts - starts[0], self._tables, self._adapters[cut], wanted, self.branches[starts[0] : starts[-1]],
        ]  # fmt: skip
        numbers = np.concatenate(parts).astype(np.int32)
        return Rows(self.tokens[cut].copy(), numbers, tuple(accumulate(map(len, parts))), self.tabled)


class RowsBuilder:
    """A collection of the rows of a pass, sequence by sequence."""

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
        """Add a token tree after `length` cached tokens of a sequence. Logits of all nodes are wanted.

        Node i has tokens[i] and parent parents[i] < i (the root, node 0, has -1). It is stored in the sequence's slot
        length + i, which may differ from its position: the accepted path is moved into place after the walk.
        """
        line, first = len(self._tables), len(self._tokens)
        self._tables.append(table)
        self._adapters.append(adapter)
        depths: list[int] = []
        runs: list[int] = []  # nodes 0..runs[i]-1 are the first ancestors of node i, which may be among them
        rest: list[list[int]] = []  # the slots of its other ancestors and itself
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
        """Add the next tokens of a prompt. Logits of the last token are wanted if `want_last`."""
        self._add_run(table, length, tokens, range(length + 1, length + len(tokens) + 1), adapter)
        if want_last:
            self._wanted.append(len(self._tokens) - 1)

    def add_block(self, table: Sequence[int], length: int, tokens: Sequence[int], *, want_first: bool = True) -> None:
        """Add tokens after `length` cached tokens that all see each other. Logits are wanted of all, or of all but the
        first token.
        """
        first, end = len(self._tokens), length + len(tokens)
        self._add_run(table, length, tokens, [end] * len(tokens), adapter=-1)
        self._wanted += range(first + (not want_first), first + len(tokens))

    def _add_run(
        self, table: Sequence[int], length: int, tokens: Sequence[int], lengths: Sequence[int], adapter: int
    ) -> None:
        """Add tokens at positions from `length` on, in the slots of these."""
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
