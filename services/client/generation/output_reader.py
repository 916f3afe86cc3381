"""Reads an output's text piece by piece: thoughts, the answer, calls of tools."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from services.client.generation.request import Called, ThoughtSyntax, ToolCall, call_id
from services.client.generation.tool_call_reader import Arguments, CallBegins, Text, ToolCallReader

if TYPE_CHECKING:
    from services.client.generation.completion import Choice, Completion, Resolved
    from services.client.generation.request import Request

_AUTHOR = "assistant"
_HEADER = re.compile(rf"{_AUTHOR}(?:(?P<channel>analysis|commentary|final)(?! to=)|(?:analysis|commentary)?(?= to=))")
_HEADERS = ("assistantanalysis to=", "assistantcommentary to=", "assistantfinal", "assistant to=")
_HARMONY_OPEN = " to=functions."
_HARMONY_MIDDLES = [channel + kind for channel in ("", "commentary", "analysis") for kind in ("json", "code", "")]
"""Between a function's name and its arguments. The channel may precede the name, and the type may be missing."""


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of the model's thoughts before its answer."""

    text: str


Part = Thought | Text | CallBegins | Arguments


class ThoughtReader:
    """Separates a thought at the beginning from the rest. Its tags and the white space around it are left out."""

    def __init__(self, syntax: ThoughtSyntax) -> None:
        self._syntax = syntax
        self._held = ""
        self._within = self._thought = syntax.begun
        self._begins = True  # before text of a thought, or of the rest: white space is left out
        self._is_rest = False

    def feed(self, text: str, *, last: bool = False) -> list[Thought | Text]:
        """The pieces that are complete; with `last` nothing is held back."""
        self._held += text
        found: list[Thought | Text] = []
        if not self._within and not self._is_rest:
            self._open(last)
        if self._within:
            found += self._think(last)
        if self._is_rest and self._begins and self._thought:
            self._held = self._held.lstrip()
        if self._is_rest and self._held:
            found.append(Text(self._held))
            self._held, self._begins = "", False
        return found

    def _open(self, last: bool) -> None:
        """Decides whether there is a thought."""
        bare = self._held.lstrip()
        opened = self._syntax.open
        if bare.startswith(opened):
            self._within, self._thought, self._held = True, True, bare.removeprefix(opened)
        elif last or not opened.startswith(bare):
            self._is_rest = True

    def _think(self, last: bool) -> list[Thought | Text]:
        self._held = self._held.lstrip() if self._begins else self._held
        ends = [(at, close) for close in self._syntax.closes if (at := self._held.find(close)) >= 0]
        if ends:
            at, close = min(ends)
            thought, self._held = self._held[:at].rstrip(), self._held[at + len(close) :]
            self._within, self._is_rest, self._begins = False, True, True
        else:
            thought = self._held if last else self._held[: _decided(self._held, self._syntax.closes)]
            self._held = self._held[len(thought) :]
            self._begins = self._begins and not thought
        return [Thought(thought)] if thought else []


class ChannelReader:
    """Separates the channels of gpt-oss: analysis is thought, other channels are text. Headers are left out, except for
    the recipient of a call. After it, and after the answer's header, all is text.
    """

    def __init__(self) -> None:
        self._held = _AUTHOR  # the prompt ends with it
        self._channel = ""
        self._begins = False  # a message, whose white space is left out

    def feed(self, text: str, *, last: bool = False) -> list[Thought | Text]:
        """The pieces that are complete; with `last` nothing is held back."""
        self._held += text
        found: list[Thought | Text] = []
        while self._channel != "final":
            header = (_HEADER.search if self._channel else _HEADER.match)(self._held)
            if header is None or (not last and _may_become(self._held[header.start() :], _HEADERS)):
                break
            rest = self._held[header.end() :]
            found += self._taken(header.start(), ends=True)
            self._channel, self._held, self._begins = header["channel"] or "final", rest, True
        if not self._channel and (last or not _may_become(self._held, _HEADERS)):
            self._channel, self._held = "final", self._held.removeprefix(_AUTHOR)
        if self._channel:
            is_rest = last or self._channel == "final"
            found += self._taken(len(self._held) if is_rest else _decided(self._held, _HEADERS))
        return found

    def _taken(self, end: int, *, ends: bool = False) -> list[Thought | Text]:
        text, self._held = self._held[:end], self._held[end:]
        text = text.lstrip() if self._begins else text
        text = text.rstrip() if ends else text
        self._begins = self._begins and not text
        kind = Thought if self._channel == "analysis" else Text
        return [kind(text)] if text else []


def _may_become(text: str, marks: Iterable[str]) -> bool:
    return any(mark != text and mark.startswith(text) for mark in marks)


def _decided(text: str, marks: Iterable[str]) -> int:
    """The number of characters before those that may belong to one of `marks`, or to the white space before it."""
    known = len(text.rstrip())
    longest = max(map(len, marks))
    starts = (at for at in range(max(0, len(text) - longest), known) if _may_become(text[at:], marks))
    return len(text[: next(starts, known)].rstrip())


class OutputReader:
    """Reads one output piece by piece: its thoughts, then text and calls."""

    def __init__(self, thoughts: ThoughtReader | ChannelReader | None, calls: ToolCallReader | None) -> None:
        self._thoughts, self._calls = thoughts, calls

    @property
    def cut_off(self) -> bool:
        """After `end`: whether the output ended within a call."""
        return self._calls is not None and self._calls.cut_off

    @property
    def is_open(self) -> bool:
        """Whether the arguments of the last call are incomplete."""
        return self._calls is not None and self._calls.is_open

    def feed(self, text: str) -> list[Part]:
        return self._read(text, last=False)

    def end(self) -> list[Part]:
        """The parts of the text that was held back."""
        return [*self._read("", last=True), *(self._calls.end() if self._calls else ())]

    def _read(self, text: str, *, last: bool) -> list[Part]:
        rest: Iterable[Thought | Text] = [Text(text)] if text else []
        if self._thoughts is not None:
            rest = self._thoughts.feed(text, last=last)
        parts: list[Part] = []
        for part in rest:
            if isinstance(part, Thought) or self._calls is None:
                parts.append(part)
            else:
                parts += self._calls.feed(part.text)
        return parts


def output_reader(resolved: Resolved, request: Request) -> OutputReader | None:
    """The reader for one choice; None if all of it is the answer, without thoughts and tools.

    An output under a constraint is calls, or none; it has no thought that the prompt has begun, and none of a syntax
    of ordinary words, of which its text may have the same. Nor has the rest of a turn that the request continues.
    """
    held = request.params.constraint is not None
    calls, tools = None, request.tool_set
    syntax = resolved.thoughts
    if resolved.tool_calls is not None and tools is not None:
        required = tools.choice == "required"
        middles = _HARMONY_MIDDLES if resolved.tool_calls.open == _HARMONY_OPEN else ()
        calls = ToolCallReader(
            resolved.tool_calls, tools.names, anywhere=not held, calls_only=required, middles=middles
        )
    if syntax is not None and (held or (tools is not None and tools.choice == "required")):
        syntax = None if syntax.begun or syntax.bare else syntax
    elif syntax is not None and request.continue_final_message:
        syntax = None if syntax.bare and not syntax.begun else syntax
    if syntax is None and calls is None:
        return None
    thoughts = None if syntax is None else ChannelReader() if syntax.bare else ThoughtReader(syntax)
    return OutputReader(thoughts, calls)


def with_calls(completion: Completion, request: Request) -> Completion:
    """The completion, with thoughts and calls of each choice read, if there may be some."""
    read = (_called(each, completion.resolved, request) for each in completion.choices)
    return replace(completion, choices=tuple(read))


def _called(choice: Choice, resolved: Resolved, request: Request) -> Choice:
    if (reader := output_reader(resolved, request)) is None:
        return choice
    content, thoughts, names, arguments = "", "", list[str](), list[str]()
    for part in (*reader.feed(choice.text), *reader.end()):
        match part:
            case Text():
                content += part.text
            case Thought():
                thoughts += part.text
            case CallBegins():
                names.append(part.name)
                arguments.append("")
            case Arguments():
                arguments[-1] += part.text
    calls = [
        ToolCall(call_id(resolved.request_id, choice.index, place), name, written)
        for place, (name, written) in enumerate(zip(names, arguments, strict=True))
    ]
    return replace(choice, called=Called(content, tuple(calls), thoughts, reader.cut_off))
