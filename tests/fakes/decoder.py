"""A `TokenDecoder` without a tokenizer: token n is the letter number n."""

from __future__ import annotations


class LetterDecoder:
    """Ids 0 to 25 are a to z, and so on. With `split`, an odd id opens a character that the next id closes."""

    def __init__(self, prompt: tuple[int, ...] = (), *, split: bool = False) -> None:
        self._split = split
        self._open = ""

    def feed(self, token: int) -> str:
        letter = chr(ord("a") + token % 26)
        if self._split and token % 2:
            self._open += letter
            return ""
        text, self._open = self._open + letter, ""
        return text

    def flush(self) -> str:
        text, self._open = "\N{REPLACEMENT CHARACTER}" * bool(self._open), ""
        return text
