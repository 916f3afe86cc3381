"""Cached states of a target, and the plan of a pass: steps from a cached state to the state of each row.

A state is a function of the cache lines of a path (`docs/numerics.md`, States), so a cached state only saves time: it
is found by the slots from which it was folded, and dropped once one of them is written. Shared prefixes, preemption and
rejected drafts need nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from services.generation.target.arrays import Int32, Int64
from services.generation.target.blocks import BLOCK, blocks_for
from services.generation.target.rows import Rows

MOST_STEPS = 1024  # of a pass
MOST_PASSING = 256  # states of a tree's nodes at the same time, in each thread's scratch
_FAR = 32  # steps after which a state is cached separately and not overwritten in place


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps in order; all int32. State 0 is zero, states below `StateBook.kept` are cached, others last for a pass."""

    taps: Int32  # [steps, taps] slots of the last tokens of the path, the step's own last; -1 before the first token
    rows: Int32  # [steps] the row of the pass, -1 for none
    sources: Int32  # [steps] state before
    targets: Int32  # [steps] state after

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(slots=True)
class _Kept:
    """The state after the first `tokens` tokens of a table that begins with `blocks`; no state if `tokens` is 0."""

    tokens: int = 0
    blocks: bytes = b""
    lasting: bool = False  # not overwritten in place
    used: int = 0  # the pass of its last use
    made: int = 0  # the pass in which it was folded


@dataclass(slots=True)
class _Line:
    """A sequence of a pass."""

    table: Int32
    known: int  # tokens in the table and in no row that are on all rows' paths
    state: int  # before the first step
    tokens: int  # folded into it


class StateBook:
    """The numbers of cached states; the memory belongs to the target. Used by one thread."""

    def __init__(self, kept: int, blocks: int, taps: int) -> None:
        """`kept`: states with memory, including the zero state; `blocks`: of the cache; `taps`: of a step."""
        self.kept, self._taps = kept, taps
        self._states = [_Kept() for _ in range(kept)]
        self._covered = np.zeros((kept, blocks), np.uint8)  # slots of each block that are folded into a state
        self._last = 1  # states from here on were never used
        self._pass = 0

    @property
    def most_lines(self) -> int:
        """The most sequences of a pass: each may begin with one state, pass a second state, and end with a third."""
        return max(1, (self.kept - 1) // 3)

    def written(self, slots: Iterable[int] | Int32 | Int64) -> None:
        """Drop the states that depend on these slots, which are overwritten."""
        places = np.asarray(slots, np.int64)
        over = (self._covered[: self._last, places // BLOCK] > places % BLOCK).any(axis=1)
        for number in np.flatnonzero(over):
            self._forget(int(number))

    def forget(self) -> None:
        """Drop all states."""
        for number in range(1, self.kept):
            self._forget(number)

    def cuts(self, rows: Rows) -> list[int]:
        """Row numbers at which a pass is split, so that states and steps of each part fit."""
        lines = list(_lines(rows.sequences))
        ends = [end for _, end in lines[self.most_lines - 1 : -1 : self.most_lines]]
        room = MOST_STEPS // 2  # for steps of tokens that are no rows
        if len(rows.branches) > room and len(np.setdiff1d(rows.branches, rows.slots)) > room:
            ends += range(1, len(rows))
        return ends

    def plan(self, rows: Rows) -> list[Steps]:
        """Steps to fold: the last ones within the pass, the others one after another before it."""
        self._pass += 1
        self.written(rows.slots)
        before: list[Steps] = []
        last: list[Steps] = []
        free = MOST_STEPS // 2 - len(rows)  # the other half is for tree rows that earlier passes have computed
        for first, end in _lines(rows.sequences):
            line = self._line(rows, first, end)
            if line.known - line.tokens > max(0, min(_FAR, free)):
                before += self._catch_up(line)
            steps = self._steps(line, rows, first, end)
            free -= len(steps) - (end - first)
            last.append(steps)
        return [*before, _joined(last)]

    def _line(self, rows: Rows, first: int, end: int) -> _Line:
        """The sequence of rows [first, end), with the state that needs the fewest steps."""
        table = rows.tables[rows.sequences[first]]
        known = int(np.minimum(rows.contiguous[first:end], rows.lengths[first:end] - 1).min())
        whole, best = table.tobytes(), 0
        for number, state in enumerate(self._states[: self._last]):
            if state.made == self._pass:  # this pass folds it after the steps of `_catch_up`
                continue
            if self._states[best].tokens < state.tokens <= known and whole.startswith(state.blocks):
                best = number
        self._states[best].used = self._pass
        return _Line(table, known, best, self._states[best].tokens)

    def _catch_up(self, line: _Line) -> Iterator[Steps]:
        """Steps up to the rows, in groups of at most MOST_STEPS."""
        state = self._fresh()
        while line.tokens < line.known:
            end = min(line.known, line.tokens + MOST_STEPS)
            steps = self._straight(line, end, state)
            yield Steps(steps, *(np.full(len(steps), -1, np.int32), *self._chained(line.state, state, len(steps))))
            self._hold(line, state, end, lasting=True)

    def _steps(self, line: _Line, rows: Rows, first: int, end: int) -> Steps:
        """Steps of known tokens, then of rows. The state after rows that cannot be rejected is cached."""
        straight = self._leading(rows, first, end, line.known)
        count = line.known - line.tokens + straight
        if not count:
            return _Tree(rows, line, self._taps, self.kept).steps(first, end)
        state = line.state if line.state and not self._states[line.state].lasting else self._fresh()
        source, target = self._chained(line.state, state, count)
        numbers = np.full(count, -1, np.int32)
        numbers[count - straight :] = np.arange(first, first + straight)
        steps = Steps(self._straight(line, line.known + straight, state), numbers, source, target)
        self._hold(line, state, line.known + straight, lasting=count > _FAR)
        if first + straight == end:
            return steps
        return _joined([steps, _Tree(rows, line, self._taps, self.kept).steps(first + straight, end)])

    def _leading(self, rows: Rows, first: int, end: int, known: int) -> int:
        """The number of consecutive rows up to the first with wanted logits: all rows of a prompt, the root of a tree.
        Rows after that may be drafts. Paths of the other rows include these rows.
        """
        at = np.searchsorted(rows.wanted, first)
        most = int(rows.wanted[at]) + 1 if at < len(rows.wanted) and rows.wanted[at] < end else end
        lengths = np.arange(known + 1, known + 1 + most - first)
        fits = (rows.lengths[first:most] == lengths) & (rows.contiguous[first:most] == lengths)
        count = most - first if fits.all() else int(np.argmin(fits))
        shared = np.minimum(rows.contiguous[first:end], rows.lengths[first:end] - 1) - known
        while 0 < count < end - first and shared[count:].min() < count:
            count -= 1
        return count

    def _straight(self, line: _Line, end: int, state: int) -> Int32:
        """Taps of the tokens from the line's state up to `end`, all in its table."""
        positions = np.arange(line.tokens - self._taps + 1, end)
        slots = line.table[positions // BLOCK] * BLOCK + positions % BLOCK
        slots = np.where(positions < 0, -1, slots).astype(np.int32)
        return np.lib.stride_tricks.sliding_window_view(slots, self._taps)[: end - line.tokens]

    @staticmethod
    def _chained(source: int, target: int, count: int) -> tuple[Int32, Int32]:
        targets = np.full(count, target, np.int32)
        sources = targets.copy()
        sources[:1] = source
        return sources, targets

    def _fresh(self) -> int:
        """The least recently used state, emptied."""
        self._last = min(self._last + 1, self.kept)
        number = min(range(1, self._last), key=lambda number: (self._states[number].used, number))
        self._forget(number)
        self._states[number].used = self._pass
        return number

    def _hold(self, line: _Line, state: int, tokens: int, *, lasting: bool) -> None:
        """Record that `state` is the state after `tokens` tokens of a line."""
        blocks = line.table[: blocks_for(tokens)]
        self._states[state] = _Kept(tokens, blocks.tobytes(), lasting, self._pass, self._pass)
        self._covered[state] = 0
        self._covered[state, blocks] = BLOCK
        if tokens % BLOCK:
            self._covered[state, blocks[-1]] = tokens % BLOCK
        line.state, line.tokens = state, tokens

    def _forget(self, number: int) -> None:
        self._states[number] = _Kept()
        self._covered[number] = 0


class _Move(NamedTuple):
    """A step, the state before and the state after it."""

    step: int
    source: int
    target: int


class _Tree:
    """Steps of rows that may branch, from the state of their line."""

    def __init__(self, rows: Rows, line: _Line, taps: int, kept: int) -> None:
        self._rows, self._line, self._taps = rows, line, taps
        self._free = list(range(kept + MOST_PASSING - 1, kept - 1, -1))
        self._steps: dict[int, int] = {}  # by slot
        self._slots: list[list[int]] = []  # taps of each step
        self._numbers: list[int] = []  # the row of each step, or -1
        self._next: dict[int, list[int]] = {}  # the steps after each step, or after the line's state (-1)

    def steps(self, first: int, end: int) -> Steps:
        for row in range(first, end):
            self._add(row)
        moves = self._in_order()
        return Steps(
            taps=np.array([self._slots[move.step] for move in moves], np.int32).reshape(-1, self._taps),
            rows=np.array([self._numbers[move.step] for move in moves], np.int32),
            sources=np.array([move.source for move in moves], np.int32),
            targets=np.array([move.target for move in moves], np.int32),
        )

    def _add(self, row: int) -> None:
        """Add a row, and the tokens of its path that are neither rows of this pass nor in the line's state."""
        rows, line, last = self._rows, self._line, int(self._rows.lengths[row]) - 1
        run, begin = int(rows.contiguous[row]), int(rows.branch_starts[row])

        def slot(position: int) -> int:
            if position < 0:
                return -1
            if position >= run:
                return int(rows.branches[begin + position - run])
            return int(line.table[position // BLOCK]) * BLOCK + position % BLOCK

        position = last
        while position > line.tokens and slot(position - 1) not in self._steps:
            position -= 1
        step = self._steps[slot(position - 1)] if position > line.tokens else -1
        for each in range(position, last + 1):
            self._next.setdefault(step, []).append(len(self._slots))
            step = self._steps[slot(each)] = len(self._slots)
            self._slots.append([slot(each - back) for back in range(self._taps - 1, -1, -1)])
            self._numbers.append(row if each == last else -1)

    def _in_order(self) -> list[_Move]:
        """Steps in depth-first order, which needs the fewest states at the same time. The last child of a step reuses
        its state.
        """
        moves = []
        waiting = [(step, self._line.state, False) for step in reversed(self._next.get(-1, ()))]
        while waiting:
            step, source, takes_over = waiting.pop()
            target = source if takes_over else self._free.pop()
            moves.append(_Move(step, source, target))
            children = self._next.get(step, [])
            waiting += [(child, target, child == children[-1]) for child in reversed(children)]
            if not children:
                self._free.append(target)
        return moves


def _lines(sequences: Int32) -> Iterator[tuple[int, int]]:
    """Rows [first, end) of each sequence."""
    borders = [0, *(np.flatnonzero(np.diff(sequences)) + 1).tolist(), len(sequences)]
    return pairwise(borders) if len(sequences) else iter(())


def _joined(steps: Sequence[Steps]) -> Steps:
    """The concatenation of steps."""
    if len(steps) == 1:
        return steps[0]
    names = ("taps", "rows", "sources", "targets")
    return Steps(*(np.concatenate([getattr(each, name) for each in steps]) for name in names))
