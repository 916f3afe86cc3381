"""Finds calls of tools in an output's text, piece by piece."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from services.client.generation.request import ToolCallSyntax


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer outside of calls."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """The next call."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the last call's arguments."""

    text: str


Part = Text | CallBegins | Arguments


@dataclass(frozen=True, slots=True)
class _Beginning:
    """Start of a possible call, or the end of the decided text; of a certain call also its name, and the end of its
    beginning.
    """

    start: int
    name: str | None = None
    end: int = 0


class ToolCallReader:
    """Reads one output piece by piece. Calls of other functions than `names`, and text that only resembles a call, are
    text.

    Joined, the parts are the same however the output is cut into pieces: the output without the syntax of calls, the
    white space before a call, and the white space between a call and the first text or the end. White space of the
    syntax may differ.

    An output that ends within a call has `cut_off`. If it ends before the call's arguments, the call's beginning is
    left out if it is hardly text: directly after another call, and in an output of calls only.
    """

    def __init__(
        self,
        syntax: ToolCallSyntax,
        names: Iterable[str],
        *,
        anywhere: bool = True,
        calls_only: bool = False,
        middles: Iterable[str] = (),
    ) -> None:
        """Unless `anywhere`, an output that does not begin with a call is text to its end. `calls_only`: the output
        is calls and nothing else. `middles`: other texts than the syntax's between a name and its arguments.
        """
        names, self._anywhere = list(names), anywhere
        ends = [_squeezed(middle) + "{" for middle in (syntax.middle, *middles)]
        before = _squeezed(syntax.open)
        self._first = {before + name + end: name for name in names for end in ends}
        between = None if syntax.between is None else _squeezed(syntax.between)
        self._next = {} if between is None else {between + name + end: name for name in names for end in ends}
        self._starts = {candidate[0] for candidate in self._first}
        self._longest = max(map(_most, self._first), default=0)
        named, after = ("|".join(map(_spaced, texts)) or "(?!)" for texts in (names, ends))
        self._whole = re.compile(rf"{_spaced(before)}\s*({named})\s*(?:{after})")
        self._close = _squeezed(syntax.close)
        self._held = ""
        self._within: _Object | None = None  # of the arguments that are open
        self._after = False  # a call's arguments: another call or the closing follows
        self._behind = calls_only  # a call, with nothing but white space since
        self._has_text = False
        self._is_text = False  # all that comes
        self.cut_off = False  # the output ended within a call

    def feed(self, text: str) -> list[Part]:
        self._held += text
        return list(self._parts(last=False))

    def end(self) -> list[Part]:
        """The text that was held back."""
        parts = list(self._parts(last=True))
        self.cut_off = self.cut_off or self.is_open
        return parts

    @property
    def is_open(self) -> bool:
        """Whether the arguments of the last call are incomplete."""
        return self._within is not None

    def _parts(self, *, last: bool) -> Iterator[Part]:
        while self._held:
            if self._is_text:
                yield self._text(len(self._held))
            elif self._within is not None:
                taken = self._within.take(self._held)
                arguments, self._held = self._held[:taken], self._held[taken:]
                if self._within.closed:
                    self._within, self._after = None, True
                yield Arguments(arguments)
            elif self._after:
                if not self._is_decided(last):
                    return
                yield from self._followed()
            elif last and self._behind and self._drop_rest(self._first):
                return
            else:
                found = self._found(last)
                known = self._held[: found.start]
                text = known if last and found.name is None else known.rstrip()  # white space may precede a call
                if text:
                    self._is_text = not self._anywhere
                    yield self._text(len(text))
                elif found.name is not None:
                    yield self._begin(found.name, found.end)
                else:
                    return

    def _text(self, length: int) -> Text:
        text, self._held = self._held[:length], self._held[length:]
        if self._behind and not self._has_text:
            text = text.lstrip()
        self._behind, self._has_text = False, True
        return Text(text)

    def _begin(self, name: str, end: int) -> CallBegins:
        """The next call. The opening brace, the end of the match, belongs to the arguments."""
        self._held, self._within, self._after = self._held[end - 1 :], _Object(), False
        return CallBegins(name)

    def _is_decided(self, last: bool) -> bool:
        """Whether it is known what follows a call: another one, the closing, or neither."""
        return last or not any(_may_become(self._held, candidate) for candidate in (*self._next, self._close))

    def _followed(self) -> Iterator[Part]:
        for candidate, name in self._next.items():
            if end := _matched(self._held, candidate):
                yield self._begin(name, end)
                return
        self._after, self._behind = False, True
        if end := _matched(self._held, self._close):
            self._held = self._held[end:]
        elif _may_become(self._held, self._close):
            self._held = ""
        else:
            self._drop_rest(self._next)

    def _drop_rest(self, candidates: Iterable[str]) -> bool:
        """Drop the rest of the output if it is blank, or the beginning of one of `candidates`; returns if it was."""
        is_blank = self._held.isspace()
        if not is_blank and not any(_may_become(self._held, candidate) for candidate in candidates):
            return False
        self._held, self.cut_off = "", not is_blank
        return True

    def _found(self, last: bool) -> _Beginning:
        known = len(self._held) if last else len(self._held.rstrip())  # white space may belong to the rest
        whole = self._whole.search(self._held)
        found = _Beginning(known) if whole is None else _Beginning(whole.start(), _squeezed(whole[1]), whole.end())
        for at in () if last else range(max(0, len(self._held) - self._longest), found.start):
            if self._held[at] in self._starts and _may_become_one(self._held[at:], self._first):
                return _Beginning(at)
        return found


class _Object:
    """Follows a JSON object to its closing brace."""

    def __init__(self) -> None:
        self._depth, self._quoted, self._escaped = 0, False, False
        self.closed = False

    def take(self, text: str) -> int:
        """The number of characters that belong to the object."""
        for place, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped, self._quoted = character == "\\", character != '"'
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self.closed = True
                    return place + 1
        return len(text)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _spaced(squeezed: str) -> str:
    """A regular expression of a text with white space anywhere."""
    return r"\s*".join(map(re.escape, squeezed))


def _matched(text: str, squeezed: str) -> int:
    """The end of `squeezed` at the beginning of `text`, ignoring white space; 0 if it is not there."""
    at = 0
    for character in squeezed:
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text) or text[at] != character:
            return 0
        at += 1
    return at


def _may_become(text: str, squeezed: str) -> bool:
    """Whether all of `text` is a beginning of `squeezed`."""
    return len(text) <= _most(squeezed) and _may_become_one(text, (squeezed,))


def _may_become_one(text: str, candidates: Iterable[str]) -> bool:
    """Whether all of `text` is a beginning of a candidate."""
    within = _squeezed(text)
    return any(len(within) < len(each) and each.startswith(within) and len(text) <= _most(each) for each in candidates)


def _most(squeezed: str) -> int:
    """The most characters of a beginning of `squeezed` with white space."""
    return 4 * len(squeezed) + 64
