"""A text that grows, in the ids of another tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from services.generation.engine.text.tokenizer import Tokenizer

_OPEN = 16  # tokens at the end that may be spelled anew once more text is there
_LONGEST_OPEN = 64  # tokens from which on the text is settled at any character, where no word begins
_BEFORE = 4  # tokens that are decoded before those that are asked for: decoders strip a text's first space
_ANCHOR = "\n"  # stands before what is encoded: some tokenizers put a space before a text
_WORD = ("\u0120", "\u2581", "\u010a")  # how byte-level and SentencePiece vocabularies write the space before a word


class Retokenized:
    """The text of one sequence in ids of `into`. Words once complete keep their ids; the last ones are spelled anew.

    The ids affect drafts only, never the output. Special tokens that `into` does not have are left out.
    """

    def __init__(self, source: Tokenizer, into: Tokenizer) -> None:
        self._source, self._into = source, into
        self.ids = into.encode("")  # what a text begins with
        self.settled = len(self.ids)  # of them that stay as they are
        self._read = 0  # tokens of the source that those stand for

    def follow(self, tokens: Sequence[int]) -> None:
        """`tokens` of the source may only have grown."""
        del self.ids[self.settled :]
        if len(tokens) - self._read > 2 * _OPEN and (border := self._border(tokens)):
            self.ids += self._spelled(tokens, self._read, border)
            self.settled, self._read = len(self.ids), border
        self.ids += self._spelled(tokens, self._read, len(tokens))

    def continuation(self, ids: Sequence[int]) -> list[int]:
        """Tokens of the source for what `ids` add to the text."""
        context = self.ids[-_BEFORE:]
        return _ids(self._source, _text(self._into, [*context, *ids], len(context)))

    def _border(self, tokens: Sequence[int]) -> int:
        """The last place outside the open end where a word begins, or any character where none does; 0 for none."""
        last = len(tokens) - _OPEN
        name = self._source.fast.id_to_token
        for place in range(last, self._read, -1):
            if (name(tokens[place]) or "").startswith(_WORD):
                return place
        if last - self._read < _LONGEST_OPEN:
            return 0
        ends = (place for place in range(last, self._read, -1) if not self._cuts(tokens, place))
        return next(ends, 0)

    def _cuts(self, tokens: Sequence[int], place: int) -> bool:
        """Whether a place lies within a character."""
        return self._source.decode_all(tokens[self._read : place]).endswith("\N{REPLACEMENT CHARACTER}")

    def _spelled(self, tokens: Sequence[int], start: int, end: int) -> list[int]:
        before = max(0, start - _BEFORE)
        kept = [token for token in tokens[start:end] if token not in self._unknown]
        context = [token for token in tokens[before:start] if token not in self._unknown]
        return _ids(self._into, _text(self._source, [*context, *kept], len(context)))

    @cached_property
    def _unknown(self) -> frozenset[int]:
        """Special tokens of the source that the other tokenizer does not have."""
        known = self._into.special_texts
        return frozenset(token for text, token in self._source.special_texts.items() if text not in known)


def _text(tokenizer: Tokenizer, tokens: Sequence[int], first: int) -> str:
    """The text of the tokens from the first one on, as it goes on after those before."""
    before, whole = tokenizer.decode_all(tokens[:first]), tokenizer.decode_all(tokens)
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode_all(tokens[first:])


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text as it stands within another."""
    anchor, whole = tokenizer.encode_output(_ANCHOR), tokenizer.encode_output(_ANCHOR + text)
    return whole[len(anchor) :] if whole[: len(anchor)] == anchor else tokenizer.encode_output(text)
