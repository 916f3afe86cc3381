"""Reads an output's text piece by piece: thoughts, the answer, calls of tools."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from services.client.generation.request import Called, ThoughtSyntax, ToolCall, call_id
from services.client.generation.tool_call_reader import Arguments, CallBegins, Text, ToolCallReader

if TYPE_CHECKING:
    from services.client.generation.completion import Choice, Completion, Resolved
    from services.client.generation.request import Request


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of the model's thoughts before its answer."""

    text: str


Part = Thought | Text | CallBegins | Arguments


class ThoughtReader:
    """Separates thoughts, at the beginning, from the rest. The syntax and white space around it are left out."""

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
        elif self._syntax.bare and bare.startswith(self._syntax.bare):
            self._is_rest, self._thought, self._held = True, True, bare.removeprefix(self._syntax.bare)
        elif last or not any(each.startswith(bare) for each in (opened, self._syntax.bare)):
            self._is_rest = True

    def _think(self, last: bool) -> list[Thought | Text]:
        self._held = self._held.lstrip() if self._begins else self._held
        ends = [(at, close) for close in self._syntax.closes if (at := self._held.find(close)) >= 0]
        if ends:
            at, close = min(ends)
            thought, rest = self._held[:at].rstrip(), self._held[at:]
            dropped = close.partition(" ")[0]  # the part after a space belongs to the rest
            self._within, self._is_rest, self._begins = False, True, True
            self._held = rest.removeprefix(dropped)
        else:
            kept = 0 if last else self._undecided()
            thought = self._held[: len(self._held) - kept]
            self._held = self._held[len(thought) :]
            self._begins = self._begins and not thought
        return [Thought(thought)] if thought else []

    def _undecided(self) -> int:
        """The number of characters at the end that may belong to a closing, or to the white space before it."""
        known = len(self._held.rstrip())
        longest = max(map(len, self._syntax.closes))
        for at in range(max(0, len(self._held) - longest), known):
            if any(close.startswith(self._held[at:]) for close in self._syntax.closes):
                return len(self._held) - len(self._held[:at].rstrip())
        return len(self._held) - known


class OutputReader:
    """Reads one output piece by piece: its thoughts, then text and calls."""

    def __init__(self, thoughts: ThoughtReader | None, calls: ToolCallReader | None) -> None:
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
    if resolved.tool_calls is not None and tools is not None:
        required = tools.choice == "required"
        calls = ToolCallReader(resolved.tool_calls, tools.names, anywhere=not held, calls_only=required)
    syntax = resolved.thoughts
    if syntax is not None and (held or (tools is not None and tools.choice == "required")):
        syntax = None if syntax.begun or syntax.bare else syntax
    elif syntax is not None and request.continue_final_message:
        syntax = None if syntax.bare and not syntax.begun else syntax
    if syntax is None and calls is None:
        return None
    return OutputReader(None if syntax is None else ThoughtReader(syntax), calls)


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
