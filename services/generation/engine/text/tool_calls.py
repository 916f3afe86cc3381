"""How a model calls tools: learned from how its chat template writes a call that was made before."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Turns = list[dict[str, Any]]

_NAMES = ("kolm_probe_first", "kolm_probe_second")
_ARGUMENTS = re.compile(r'\{\s*"kolm_probe_key"\s*:\s*"kolm_probe_value"\s*\}')
_ID = "kolmprobe"  # nine letters: Mistral's templates take no other length
_WRITTEN_ID = re.compile(rf',\s*"id"\s*:\s*"{_ID}"')  # models do not write what templates put there
_THOUGHT = re.compile(r"<think>\s*</think>\s*")  # before a last turn, by Qwen's templates
PROBE_TOOL = {
    "type": "function",
    "function": {"name": _NAMES[0], "description": "", "parameters": {"type": "object", "properties": {}}},
}
_USER = {"role": "user", "content": "Hello."}


@dataclass(frozen=True, slots=True)
class ToolCallSyntax:
    """An output that calls: `open`, name, `middle`, arguments, then `between`, name, `middle`, arguments for each
    further call, and `close`. `between` is None where the template writes a single call.
    """

    open: str
    middle: str
    between: str | None
    close: str

    def without(self, special: Iterable[str]) -> ToolCallSyntax:
        """As decoded text has it, where special tokens are no text."""

        def plain(text: str) -> str:
            for token in special:
                text = text.replace(token, "")
            return text

        between = None if self.between is None else plain(self.between)
        return ToolCallSyntax(plain(self.open), plain(self.middle), between, plain(self.close))

    def written(self, calls: list[tuple[str, str]]) -> str:
        """As text, of (name, arguments)."""
        bodies = [name + self.middle + arguments for name, arguments in calls]
        return self.open + (self.between or self.close + self.open).join(bodies) + self.close


PLAIN = ToolCallSyntax(
    open='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    between='}\n</tool_call>\n<tool_call>\n{"name": "',
    close="}\n</tool_call>",
)
"""That of Hermes and Qwen, for templates that know no tools."""


def learned_syntax(render: Callable[[Turns, bool], str]) -> ToolCallSyntax | None:
    """`render` lays turns out, with or without the beginning of the assistant's next turn, and with `PROBE_TOOL`.

    None where a call is not written as name and JSON arguments.
    """
    try:
        prefix, answer = render([_USER], True), render([_USER, {"role": "assistant", "content": _NAMES[0]}], False)
        first = _parts(_written(render, 1), prefix)
    except Exception:  # a template is code: it raises what it likes
        return None
    end = answer.rpartition(_NAMES[0])[2]
    if first is None or not first[-1].endswith(end):
        return None
    opened, middle, close = first
    return ToolCallSyntax(opened, middle, _between(render, prefix), close.removesuffix(end) if end else close)


def _between(render: Callable[[Turns, bool], str], prefix: str) -> str | None:
    try:
        parts = _parts(_written(render, 2), prefix)
    except Exception:
        return None
    return None if parts is None else parts[2]


def _written(render: Callable[[Turns, bool], str], count: int) -> str:
    function = {"arguments": {"kolm_probe_key": "kolm_probe_value"}}
    calls = [{"id": _ID, "type": "function", "function": {"name": name} | function} for name in _NAMES[:count]]
    return _WRITTEN_ID.sub("", render([_USER, {"role": "assistant", "content": "", "tool_calls": calls}], False))


def _parts(text: str, prefix: str) -> list[str] | None:
    """The text before, between and after names and arguments; None unless there are both, in this order."""
    if not text.startswith(prefix):
        return None
    rest = _THOUGHT.sub("", text[len(prefix) :])
    pieces = re.split(rf"({'|'.join(_NAMES)}|{_ARGUMENTS.pattern})", rest)
    kinds = [piece in _NAMES for piece in pieces[1::2]]
    if not kinds or kinds != [True, False] * (len(kinds) // 2):
        return None
    return pieces[0::2]
