"""Holding an answer's text against its token ids, as both come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from services.generation.remote.dialects import UpstreamError

_LATE = 64  # tokens of one step, in which an engine may find a stop string a little late
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


class Decoder(Protocol):
    """One token after the other: the text that each completes, and in the end what is open."""

    def feed(self, token: int) -> str: ...

    def flush(self) -> str: ...


class Spelling:
    """What ids spell and what an engine says, each as far as it has come; one may be ahead of the other.

    Bytes that are not UTF-8 are shown as U+FFFD by decoders, by each in its own number: from the first one on
    the two are compared without them, once all is there.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._spelled: list[str] = []  # by token
        self._said = ""
        self._ahead, self._behind = "", ""  # of what is spelled, and said, beyond what they have in common
        self._unclear = False

    def feed(self, ids: Sequence[int], text: str) -> None:
        """Raises UpstreamError where they part."""
        pieces = [self._decoder.feed(token) for token in ids]
        self._spelled += pieces
        self._said += text
        self._ahead, self._behind = self._ahead + "".join(pieces), self._behind + text
        common = min(len(self._ahead), len(self._behind))
        if not self._unclear and self._ahead[:common] != self._behind[:common]:
            self._unclear = _UNKNOWN in self._ahead or _UNKNOWN in self._behind
            if not self._unclear:
                raise _parted(self._ahead[:common], self._behind[:common])
        self._ahead, self._behind = self._ahead[common:], self._behind[common:]

    def end(self, stop: str | None, *, by_token: bool) -> str:
        """What the text lacks of what the ids spell: bytes of a character that never was whole. `stop` is the string
        that ended it, which the text leaves out; `by_token`: the last token did, which has no text.

        Raises UpstreamError.
        """
        if stop is not None and _clear("".join(self._spelled[:-_LATE])).startswith(_clear(self._said + stop)):
            raise UpstreamError(f"went on for more than {_LATE} tokens after the stop string {stop!r}")
        pieces = self._spelled[:-1] if by_token else [*self._spelled, self._decoder.flush()]
        return missing("".join(pieces), self._said, stop)


def missing(spelled: str, said: str, stop: str | None) -> str:
    """See `Spelling.end`. Raises UpstreamError where the ids do not spell what was said."""
    if stop is not None:
        if _clear(spelled).startswith(_clear(said + stop)):
            return ""
    elif spelled.startswith(said) and not _clear(spelled[len(said) :]):
        return spelled[len(said) :]
    elif _clear(spelled) == _clear(said):
        return ""
    raise _parted(spelled, said + (stop or ""))


def _clear(text: str) -> str:
    return text.replace(_UNKNOWN, "")


def _parted(spelled: str, said: str) -> UpstreamError:
    place = next((at for at, (one, other) in enumerate(zip(spelled, said, strict=False)) if one != other), 0)
    return UpstreamError(
        f"says {said[place : place + 40]!r} where its token ids spell {spelled[place : place + 40]!r}; expected the "
        "text of the ids: is --weights the model that it serves?"
    )
