"""Text that comes in pieces, on a terminal: lines break between words, not within one."""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.cells import cell_len

_PIECES = re.compile(r"\s|\S+")


class WrappedText:
    """Writes a word once it is known to be whole: whitespace has followed it."""

    def __init__(self, write: Callable[[str], None], width: Callable[[], int]) -> None:
        """`width` is that of the terminal, in columns, asked for each word."""
        self._write, self._width = write, width
        self._column, self._word = 0, ""

    def __call__(self, text: str) -> None:
        for piece in _PIECES.findall(text):
            if piece.isspace():
                self._end_word()
                self._space(piece)
            else:
                self._word += piece

    def _end_word(self) -> None:
        size = cell_len(self._word)
        if self._column and size and self._column + size > self._width():
            self._write("\n")
            self._column = 0
        self._write(self._word)
        self._column, self._word = self._column + size, ""

    def _space(self, piece: str) -> None:
        """A space after a full line is left out: the terminal would put it at the beginning of the next one."""
        if piece == "\n" or self._column < self._width():
            self._write(piece)
        self._column = 0 if piece == "\n" else self._column + 1
