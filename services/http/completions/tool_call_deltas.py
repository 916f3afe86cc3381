"""Calls of tools in a chat's stream, as OpenAI's deltas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.client import ToolCall
from services.client.generation.request import call_id
from services.client.generation.tool_call_reader import Arguments, CallBegins, Part, Text, ToolCallReader


class ToolCallDeltas:
    """Of one choice."""

    def __init__(self, reader: ToolCallReader, request_id: str, choice: int) -> None:
        self._reader, self._request_id, self._choice = reader, request_id, choice
        self.calls = 0

    def feed(self, text: str) -> list[dict[str, Any]]:
        return [self._delta(part) for part in self._reader.feed(text)]

    def end(self) -> list[dict[str, Any]]:
        """The text that was held back, without white space after calls."""
        parts = (part for part in self._reader.end() if not (self.calls and _is_blank(part)))
        return [self._delta(part) for part in parts]

    def _delta(self, part: Part) -> dict[str, Any]:
        match part:
            case Text():
                return {"content": part.text}
            case CallBegins():
                self.calls += 1
                call = ToolCall(call_id(self._request_id, self._choice, self.calls - 1), part.name, "")
                return {"tool_calls": [{"index": self.calls - 1, **call_json(call)}]}
            case Arguments():
                return {"tool_calls": [{"index": self.calls - 1, "function": {"arguments": part.text}}]}


def call_json(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def message_json(content: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """An assistant's message; beside calls an empty content is null."""
    if not calls:
        return {"role": "assistant", "content": content, "refusal": None}
    called = [call_json(call) for call in calls]
    return {"role": "assistant", "content": content or None, "refusal": None, "tool_calls": called}


def _is_blank(part: Part) -> bool:
    return isinstance(part, Text) and part.text.isspace()
