"""Predicted output: drafts are the text that the caller expects, from the place that the output has reached.

If the output leaves the prediction and comes back to it, it was edited. The same edit is expected again: a name is
mostly changed everywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from services.generation.drafting.acceptance import PREDICTED
from services.generation.drafting.copies import END, LONGEST, REACH, Copies, places_after
from services.generation.engine.request import EngineRequest

_FIRST = 4  # tokens of a match that an output counts as at first: it is likely to begin as the prediction
_BACK = 3  # tokens in common after which the output is taken to be back
_PLACES = 4  # at which it may be back, as long as that is not sure
_LONGEST_EDIT = 16  # tokens
_MOST_EDITS = 8  # the newest are kept


@dataclass(slots=True)
class _Edit:
    """Tokens of the prediction, and the output's tokens in their place. `score`: how often the output had them, less
    how often not.
    """

    old: list[int]
    new: list[int]
    score: int = 1


@dataclass(frozen=True, slots=True)
class _Step:
    """A token that is expected. `after`: the place in the prediction once it was emitted; `done`: the edit that is
    complete then.
    """

    token: int
    after: int
    done: _Edit | None = None


class Prediction:
    """The prediction of one sequence. Without a text to copy from it finds nothing."""

    def __init__(self, request: EngineRequest) -> None:
        self._text, self._read = list(request.prediction), len(request.prompt)
        self._searched = np.array([*self._text, END], np.int64)
        self._place = 0  # of the text that the output has followed so far
        self._matched = _FIRST  # tokens that the output has followed it for
        self._diverged: list[int] = []  # emitted since the output left it
        self._partial_edit: list[int] = []  # emitted of an edit that is not complete
        self._edits: list[_Edit] = []  # the newest one first
        self._ahead: deque[_Step] = deque()  # the tokens expected next
        self._coming = self._steps(0)  # the tokens expected behind those

    def copies(self, tokens: Sequence[int], depth: int = REACH) -> list[Copies]:
        """Copies that may follow `tokens` (prompt and output). `tokens` may only have grown since the last call."""
        if not self._text:
            return []
        for token in tokens[self._read :]:
            self._follow(token)
        self._read = len(tokens)
        if self._diverged:
            self._resync(tokens)
        found = list(self._elsewhere(tokens, depth) if self._diverged else self._onward(depth))
        rows = np.full((len(found), depth), END, np.int64)
        for row, (_, expected) in zip(rows, found, strict=True):
            row[: len(expected)] = expected
        return [Copies(PREDICTED, rows, np.array([length for length, _ in found], np.int64))]

    def _onward(self, depth: int) -> Iterator[tuple[int, list[int]]]:
        """While the output follows the text: its next tokens with edits, then without."""
        self._plan(depth)
        yield self._matched, [step.token for step in islice(self._ahead, depth)]
        if self._edits and self._text[self._place :][: len(self._partial_edit)] == self._partial_edit:
            behind = self._place + len(self._partial_edit)
            yield 0, self._text[behind : behind + depth]

    def _elsewhere(self, tokens: Sequence[int], depth: int) -> Iterator[tuple[int, list[int]]]:
        """Once the output has left the text: the tokens after each match of its end, then those after a replacement of
        equal length and after an insertion.
        """
        places, lengths = self._matches(tokens, _PLACES)
        guessed = (self._place + len(self._diverged), self._place)
        for place, length in (*zip(places, lengths, strict=True), *((place, 0) for place in guessed)):
            yield length, [step.token for step in islice(self._steps(place), depth)]

    def _matches(self, tokens: Sequence[int], most: int) -> tuple[list[int], list[int]]:
        end = np.array(tokens[-LONGEST:], np.int64)
        places, lengths = places_after(self._searched, end, most, self._place + len(self._diverged))
        return places.tolist(), lengths.tolist()

    def _plan(self, depth: int) -> None:
        """Look at least `depth` tokens ahead, or to the end of the text."""
        self._ahead.extend(islice(self._coming, max(0, depth - len(self._ahead))))

    def _steps(self, place: int) -> Iterator[_Step]:
        """The tokens that are expected from a place on."""
        while place < len(self._text):
            edit = self._edit_at(place)
            if edit is None:
                place += 1
                yield _Step(self._text[place - 1], place)
            else:
                yield from (_Step(token, place) for token in edit.new[:-1])
                place += len(edit.old)
                yield _Step(edit.new[-1], place, edit)

    def _edit_at(self, place: int) -> _Edit | None:
        fitting = (edit for edit in self._edits if self._text[place : place + len(edit.old)] == edit.old)
        return next((edit for edit in fitting if edit.score > 0), None)

    def _follow(self, token: int) -> None:
        """Take in a token that was emitted."""
        self._plan(1)
        if self._diverged:
            self._diverged.append(token)
        elif self._ahead and self._ahead[0].token == token:
            self._advance(self._ahead.popleft())
        elif self._text[self._place :][: len(self._partial_edit) + 1] == [*self._partial_edit, token]:
            self._unedited()
        else:
            self._diverged = [*self._partial_edit, token]

    def _advance(self, step: _Step) -> None:
        self._matched += 1
        self._partial_edit = [*self._partial_edit, step.token] if step.after == self._place else []
        self._place = step.after
        if step.done is not None:
            step.done.score += 1

    def _unedited(self) -> None:
        """The text was emitted without an edit that was expected."""
        edit = self._edit_at(self._place)
        if edit is not None:
            edit.score -= 1
        self._go_to(self._place + len(self._partial_edit) + 1, self._matched + 1)

    def _resync(self, tokens: Sequence[int]) -> None:
        """Look for the end of the output in the text. If it is back, it has been edited until there."""
        places, lengths = self._matches(tokens, 1)
        if not places or lengths[0] < _BACK:
            return
        same = lengths[0]
        if same < len(self._diverged) or (same == len(self._diverged) and places[0] - same >= self._place):
            self._learn(self._text[self._place : places[0] - same], self._diverged[: len(self._diverged) - same])
        self._go_to(places[0], same)

    def _learn(self, old: list[int], new: list[int]) -> None:
        if self._place > 0 and not (old and new):  # an insertion and a deletion need something that they belong to
            before = self._text[self._place - 1]
            old, new = [before, *old], [before, *new]
        if old == new or not (0 < len(old) <= _LONGEST_EDIT and 0 < len(new) <= _LONGEST_EDIT):
            return
        self._edits = [_Edit(old, new), *(edit for edit in self._edits if edit.old != old)][:_MOST_EDITS]

    def _go_to(self, place: int, matched: int) -> None:
        self._place, self._matched = place, matched
        self._diverged, self._partial_edit = [], []
        self._ahead.clear()
        self._coming = self._steps(place)
