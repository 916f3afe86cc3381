"""Comparison of an answer's text with its token ids while both are received."""

from __future__ import annotations

from collections.abc import Sequence

from services.generation.engine.sequence import TokenDecoder
from services.generation.remote.answer import UpstreamError

_LATE = 64  # tokens of one step, after which an engine may find a stop string
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_HELD = 8  # signs of tokens before an incomplete character, with which vLLM omits them; 4 in Qwen's vocabulary


class Spelling:
    """Compares the text of ids with the text of an engine; one may be ahead of the other.

    Decoders show bytes that are not UTF-8 as different numbers of U+FFFD: from the first of them on the two are
    compared without them, and their places at the end.
    """

    def __init__(self, decoder: TokenDecoder) -> None:
        self._decoder = decoder
        self._spelled: list[str] = []  # by token
        self._text = ""
        self._ahead, self._behind = "", ""  # the rest of the ids' text, and of the engine's, beyond their common part
        self._unclear = False

    def feed(self, ids: Sequence[int], text: str) -> None:
        """Add ids and text. Raises UpstreamError if they differ."""
        pieces = [self._decoder.feed(token) for token in ids]
        self._spelled += pieces
        self._text += text
        self._ahead, self._behind = self._ahead + "".join(pieces), self._behind + text
        self._unclear = self._unclear or _UNKNOWN in self._ahead or _UNKNOWN in self._behind
        if self._unclear:
            self._ahead, self._behind = without_unknown(self._ahead), without_unknown(self._behind)
        common = min(len(self._ahead), len(self._behind))
        if self._ahead[:common] != self._behind[:common]:
            raise _mismatch(self._ahead[:common], self._behind[:common])
        self._ahead, self._behind = self._ahead[common:], self._behind[common:]

    def end(self, stop: str | None, *, by_token: bool) -> str:
        """The part of the ids' text that is missing in the text: tokens with bytes of an incomplete character. `stop`:
        the string that ended it, which the text omits; `by_token`: the last token ended it, and has no text.

        Raises UpstreamError.
        """
        early = without_unknown("".join(self._spelled[:-_LATE]))
        if stop is not None and early.startswith(without_unknown(self._text + stop)):
            raise UpstreamError(f"went on for more than {_LATE} tokens after the stop string {stop!r}")
        pieces = self._spelled[:-1] if by_token else self._spelled
        return missing("".join(pieces) + self._decoder.flush(), self._text, stop)


def missing(spelled: str, text: str, stop: str | None) -> str:
    """See `Spelling.end`. Raises UpstreamError if the text is not that of the ids."""
    rest = _after(spelled, text + (stop or ""))
    held = rest is not None and len(without_unknown(rest)) <= _HELD * rest.endswith(_UNKNOWN)
    if rest is not None and (stop is not None or held):
        return rest if stop is None and spelled.startswith(text) else ""
    raise _mismatch(spelled, text + (stop or ""))


def _after(spelled: str, text: str) -> str | None:
    """The part of a spelled text after `text`, in which each U+FFFD of it may be missing or repeated; None if it does
    not begin so.
    """
    if spelled.startswith(text):
        return spelled[len(text) :]
    at = 0
    for place, sign in enumerate(text):
        if sign == _UNKNOWN:
            if spelled[at : at + 1] == _UNKNOWN:
                at += 1
            elif spelled[at - 1 : at] != _UNKNOWN or text[place - 1 : place] != _UNKNOWN:
                return None
            continue
        while spelled[at : at + 1] == _UNKNOWN:
            at += 1
        if spelled[at : at + 1] != sign:
            return None
        at += 1
    return spelled[at:]


def without_unknown(text: str) -> str:
    """The text without U+FFFD, which stands for bytes of no character or of an incomplete one."""
    return text.replace(_UNKNOWN, "")


def _mismatch(spelled: str, text: str) -> UpstreamError:
    pairs = enumerate(zip(spelled, text, strict=False))
    place = next((at for at, (one, other) in pairs if one != other), min(len(spelled), len(text)))
    return UpstreamError(
        f"sent the text {text[place : place + 40]!r} with token ids of {spelled[place : place + 40]!r}; expected the "
        "text of the ids: is --weights the model that it serves?"
    )
