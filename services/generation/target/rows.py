"""The rows of one pass: which tokens are computed, where their keys go, and which keys each of them sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from services.generation.target.arrays import Int32, Int64
from services.generation.target.blocks import BLOCK


@dataclass(frozen=True, slots=True)
class Rows:
    """One pass over `n` rows of `s` sequences. A slot is block * BLOCK + offset in the key/value pool.

    tokens [n] int64; all others int32. A row sees `lengths` positions: the first `contiguous` slots of its sequence's
    table, then those of its `branches`, ancestors in the token tree that do not lie in one run with the committed
    tokens, itself last. The last position that a row of a target sees is its own.
    """

    tokens: Int64
    positions: Int32  # [n] absolute position of the token, by which it is rotated
    lengths: Int32  # [n]
    slots: Int32  # [n] where its key and value are stored
    sequences: Int32  # [n] its line in tables
    contiguous: Int32  # [n]
    branch_starts: Int32  # [n + 1]
    branches: Int32  # [branch_starts[n]] slots
    tables: Int32  # [s, most blocks] block table of each sequence, short ones padded with 0
    adapter_slots: Int32 | None  # [n] index of a row's adapter among the target's, -1 for none; None: no row has one
    wanted: Int32  # rows whose logits are wanted

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, first: int, last: int) -> Rows:
        """Rows [first, last) as a pass of their own. Rows before them in their sequence must have been computed."""
        cut = slice(first, last)
        starts = self.branch_starts[first : last + 1]
        wanted = self.wanted[(self.wanted >= first) & (self.wanted < last)] - first
        return replace(
            self,
            tokens=self.tokens[cut],
            positions=self.positions[cut],
            lengths=self.lengths[cut],
            slots=self.slots[cut],
            sequences=self.sequences[cut],
            contiguous=self.contiguous[cut],
            branch_starts=starts - starts[0],
            branches=self.branches[starts[0] : starts[-1]],
            adapter_slots=None if self.adapter_slots is None else self.adapter_slots[cut],
            wanted=wanted.astype(np.int32),
        )


class PlacedNode(NamedTuple):
    """A node of a tree that is computed level by level, and where its key and value are."""

    token: int
    position: int
    slot: int
    run: int  # the number of first slots of the table that are seen
    branch: tuple[int, ...]  # then these: ancestors that do not lie in that run, itself last; empty where all do


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

    def add_level(self, table: Sequence[int], nodes: Sequence[PlacedNode]) -> None:
        """Add nodes of one level of a tree, whose ancestors have been computed; every node's logits are wanted."""
        line, first = len(self._tables), len(self._tokens)
        self._tables.append(table)
        self._adapters.append(-1)
        for node in nodes:
            self._tokens.append(node.token)
            self._positions.append(node.position)
            self._lengths.append(node.position + 1)
            self._slots.append(node.slot)
            self._contiguous.append(node.run)
            self._branches += node.branch
            self._branch_starts.append(len(self._branches))
        self._sequences += [line] * len(nodes)
        self._wanted += range(first, first + len(nodes))

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
        most = max((len(table) for table in self._tables), default=0)
        tables = np.zeros((len(self._tables), most), np.int32)
        for line, table in enumerate(self._tables):
            tables[line, : len(table)] = table
        sequences = np.array(self._sequences, np.int32)
        adapted = any(adapter >= 0 for adapter in self._adapters)
        return Rows(
            tokens=np.array(self._tokens, np.int64),
            positions=np.array(self._positions, np.int32),
            lengths=np.array(self._lengths, np.int32),
            slots=np.array(self._slots, np.int32),
            sequences=sequences,
            contiguous=np.array(self._contiguous, np.int32),
            branch_starts=np.array(self._branch_starts, np.int32),
            branches=np.array(self._branches, np.int32),
            tables=tables,
            adapter_slots=np.array(self._adapters, np.int32)[sequences] if adapted else None,
            wanted=np.array(self._wanted, np.int32),
        )
