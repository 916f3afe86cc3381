"""Text of a running sequence: decoded token by token, searched for stop strings, released when it is safe."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol


class TokenDecoder(Protocol):
    """Incremental decoding of one sequence; a token may complete no character yet."""

    def feed(self, token: int) -> str:
        """Text that `token` completes; empty while a character is open."""
        ...

    def flush(self) -> str:
        """The rest at the end: open characters as U+FFFD."""
        ...


class NoText:
    """A decoder for sequences whose text nobody reads."""

    def __init__(self, prompt: tuple[int, ...]) -> None:
        pass

    def feed(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Released:
    token_ids: tuple[int, ...]
    text: str


class TextStream:
    """Holds back what could become a stop string, over any chunk border; a token leaves together with its text."""

    def __init__(self, decoder: TokenDecoder, stops: tuple[str, ...]) -> None:
        self._decoder = decoder
        self._stops = stops
        self._text = ""
        self._released = 0  # characters of _text
        self._tokens: deque[tuple[int, int]] = deque()  # tokens not yet released, each with the text length after it

    @property
    def text(self) -> str:
        return self._text

    def feed(self, token: int, *, visible: bool = True, search: bool = True) -> str | None:
        """Take the next token; returns the stop string that it completes, if any, having cut the text before it.

        Not `visible` is a token without text (end of sequence, a stop id); without `search` stop strings do not count.
        """
        start = len(self._text)
        self._text += self._decoder.feed(token) if visible else ""
        self._tokens.append((token, len(self._text)))
        if not search or start == len(self._text):
            return None
        found = [(at, stop) for stop in self._stops if (at := self._find(stop, start)) >= 0]
        if not found:
            return None
        at, stop = min(found)
        self._text = self._text[:at]
        return stop

    def _find(self, stop: str, start: int) -> int:
        return self._text.find(stop, max(self._released, start - len(stop) + 1))

    def release(self) -> Released:
        """Everything that can no longer become part of a stop string."""
        return self._release(len(self._text) - self._open_suffix())

    def finish(self, *, matched: bool) -> Released:
        """Everything left; unless a stop string was `matched`, with what the decoder still held."""
        if not matched:
            self._text += self._decoder.flush()
        self._tokens = deque((token, min(end, len(self._text))) for token, end in self._tokens)
        return self._release(len(self._text))

    def _release(self, end: int) -> Released:
        end = max(end, self._released)
        tokens = []
        while self._tokens and self._tokens[0][1] <= end:
            tokens.append(self._tokens.popleft()[0])
        text, self._released = self._text[self._released : end], end
        return Released(tuple(tokens), text)

    def _open_suffix(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(self._text)), longest, -1):
                if self._text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
