"""Tool calls in prompts and outputs: JSON as text, and turns for chat templates without tools or later system turns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeVar

Turn = dict[str, Any]
Turns = list[Turn]
_Layout = TypeVar("_Layout")

_NAMES = ("kolm_probe_first", "kolm_probe_second")
_ARGUMENTS = re.compile(r'\{\s*"kolm_probe_key"\s*:\s*"kolm_probe_value"\s*\}')
_ID = "kolmprobe"  # nine letters: required by Mistral's templates
_WRITTEN_ID = re.compile(rf',\s*"id"\s*:\s*"{_ID}"')  # written by templates and not by models
_THOUGHT = re.compile(r"<think>\s*</think>\s*")  # before a last turn, written by Qwen's templates
PROBE_TOOL = {
    "type": "function",
    "function": {"name": _NAMES[0], "description": "", "parameters": {"type": "object", "properties": {}}},
}
THOUGHTS = "reasoning_content"
"""The name of a turn's thoughts in chat templates; for gpt-oss's template transformers adds `thinking`."""
_CHANNEL_FIRST = " <|constrain|>json<|message|>"
"""Between name and arguments if gpt-oss names the channel before the function."""
_USER = {"role": "user", "content": "Hello."}
_DESCRIPTION = """You can call functions. Each line describes one, as JSON:
<tools>
{tools}
</tools>
To call functions, write one such block for each call, with arguments that fit the function's parameters:
{example}
Their results follow within <tool_response></tool_response>."""


@dataclass(frozen=True, slots=True)
class ToolCallSyntax:
    """The form of an output with calls: `open`, name, `middle`, arguments, then `between`, name, `middle`, arguments
    for each further call, and `close`. `between` is None if the template writes a single call.
    """

    open: str
    middle: str
    between: str | None
    close: str

    @property
    def middles(self) -> tuple[str, ...]:
        """`middle`, and another text in its place that the model may write."""
        return (self.middle, _CHANNEL_FIRST) if self == HARMONY_CALLS else (self.middle,)

    def without(self, special: Iterable[str]) -> ToolCallSyntax:
        """The syntax in decoded text, in which special tokens have no text."""

        def plain(text: str) -> str:
            for token in special:
                text = text.replace(token, "")
            return text

        between = None if self.between is None else plain(self.between)
        return ToolCallSyntax(plain(self.open), plain(self.middle), between, plain(self.close))

    def written(self, calls: list[tuple[str, str]]) -> str:
        """The text of calls, each (name, arguments)."""
        bodies = [name + self.middle + arguments for name, arguments in calls]
        return self.open + (self.between or self.close + self.open).join(bodies) + self.close


PLAIN = ToolCallSyntax(
    open='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    between='}\n</tool_call>\n<tool_call>\n{"name": "',
    close="}\n</tool_call>",
)
"""The syntax of Hermes and Qwen, for templates without tools."""
HARMONY_CALLS = ToolCallSyntax(" to=functions.", "<|channel|>commentary json<|message|>", None, "")
"""gpt-oss's syntax. Its calls end with a token of their own."""


def learned_syntax(render: Callable[[Turns, bool], str]) -> ToolCallSyntax | None:
    """Learn the syntax of a template. `render` renders turns with `PROBE_TOOL`, with or without the beginning of the
    assistant's next turn.

    None if a call is not written as name and JSON arguments.
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
    """The texts before, between and after names and arguments; None unless both occur in this order."""
    if not text.startswith(prefix):
        return None
    rest = _THOUGHT.sub("", text[len(prefix) :])
    pieces = re.split(rf"({'|'.join(_NAMES)}|{_ARGUMENTS.pattern})", rest)
    kinds = [piece in _NAMES for piece in pieces[1::2]]
    if not kinds or kinds != [True, False] * (len(kinds) // 2):
        return None
    return pieces[0::2]


_EXAMPLE = PLAIN.written([("NAME", "{…}")])


def plain_turns(turns: Sequence[Turn], tools: Sequence[dict[str, Any]]) -> list[Turn]:
    """The turns with calls as text, results and the user's text after them as one turn of the user, and tools described
    in the first turn.
    """
    plain: list[Turn] = []
    for turn in turns:
        role, content, is_result = turn["role"], _with_calls(turn), turn["role"] == "tool"
        if is_result:
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        if role == "user" and plain and plain[-1]["results"]:
            plain[-1]["content"] += "\n" + content
        else:
            thoughts = {THOUGHTS: turn[THOUGHTS]} if THOUGHTS in turn else {}
            plain.append({"role": role, "content": content, "results": is_result} | thoughts)
    described = next((turn for turn in plain if turn["role"] in ("system", "user")), None)
    if tools and described is not None:
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        about = _DESCRIPTION.format(tools=lines, example=_EXAMPLE)
        both = (described["content"], about) if described["role"] == "system" else (about, described["content"])
        described["content"] = "\n\n".join(text for text in both if text)
    return [{name: value for name, value in turn.items() if name != "results"} for turn in plain]


def system_first(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with system turns at the beginning as one, and the text of each later one in the user's turn before it,
    or if there is none, in the user's turn after it.
    """
    first = list(takewhile(lambda turn: turn["role"] == "system", turns))
    moved = [{"role": "system", "content": "\n\n".join(turn["content"] for turn in first)}] if first else []
    joins = False  # whether the last turn ends with a system turn's text
    for turn in turns[len(first) :]:
        is_system = turn["role"] == "system"
        role = "user" if is_system else turn["role"]
        if moved and role == "user" == moved[-1]["role"] and (is_system or joins):
            moved[-1] |= {"content": f"{moved[-1]['content']}\n\n{turn['content']}"}
        else:
            moved.append(turn | {"role": role})
        joins = is_system
    return moved


def laid_out(turns: Sequence[Turn], lay_out: Callable[[list[Turn]], _Layout]) -> _Layout:
    """`lay_out` of the turns, or if it raises ValueError, of what `system_first` makes of them, or without thoughts
    beside both a text and calls, which gpt-oss's template refuses. Raises the first error.
    """
    try:
        return lay_out(list(turns))
    except ValueError:
        fewer = [_without_thoughts(turn) if turn["content"] and "tool_calls" in turn else turn for turn in turns]
        for other in (system_first(turns), fewer, system_first(fewer)):
            if other != list(turns):
                with suppress(ValueError):
                    return lay_out(other)
        raise


def _without_thoughts(turn: Turn) -> Turn:
    return {name: value for name, value in turn.items() if name != THOUGHTS}


def _with_calls(turn: Turn) -> str:
    calls = [
        (call["function"]["name"], json.dumps(call["function"]["arguments"], ensure_ascii=False))
        for call in turn.get("tool_calls", ())
    ]
    return "\n".join(text for text in (turn["content"], PLAIN.written(calls) if calls else "") if text)
