"""Items of a response: one message of text, and calls of functions; whole, and as events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.client.generation.completion import PositionLogprobs
from services.http.members.logprobs import response_logprobs

Event = tuple[str, dict[str, Any]]
"""Its name, and its members but for its number."""


class MessageItem:
    """Text. Its place is its index among the items."""

    def __init__(self, item_id: str, place: int) -> None:
        self._id, self._place, self._text = item_id, place, ""
        self._logprobs: list[dict[str, Any]] = []

    def opened(self) -> list[Event]:
        message = self.value("in_progress") | {"content": []}
        return [
            ("response.output_item.added", {"output_index": self._place, "item": message}),
            self._event("response.content_part.added", part=self._part()),
        ]

    def add(self, text: str, positions: Sequence[PositionLogprobs] = ()) -> list[Event]:
        logprobs = response_logprobs(positions)
        self._text += text
        self._logprobs += logprobs
        return [self._event("response.output_text.delta", delta=text, logprobs=logprobs)] if text or logprobs else []

    def closed(self, status: str) -> list[Event]:
        return [
            self._event("response.output_text.done", text=self._text, logprobs=self._logprobs),
            self._event("response.content_part.done", part=self._part()),
            ("response.output_item.done", {"output_index": self._place, "item": self.value(status)}),
        ]

    def value(self, status: str) -> dict[str, Any]:
        return {
            "type": "message", "id": self._id, "status": status, "role": "assistant", "content": [self._part()],
        }  # fmt: skip

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": list(self._logprobs)}

    def _event(self, name: str, /, **members: Any) -> Event:
        return name, {"item_id": self._id, "output_index": self._place, "content_index": 0, **members}


class CallItem:
    """A call of a function."""

    def __init__(self, item_id: str, place: int, call_id: str, name: str) -> None:
        self._id, self._place, self._call_id, self._name, self._arguments = item_id, place, call_id, name, ""

    def opened(self) -> list[Event]:
        return [("response.output_item.added", {"output_index": self._place, "item": self.value("in_progress")})]

    def add(self, text: str) -> list[Event]:
        self._arguments += text
        return [self._event("response.function_call_arguments.delta", delta=text)]

    def closed(self, status: str) -> list[Event]:
        done = self._event("response.function_call_arguments.done", name=self._name, arguments=self._arguments)
        return [done, ("response.output_item.done", {"output_index": self._place, "item": self.value(status)})]

    def value(self, status: str) -> dict[str, Any]:
        return {
            "type": "function_call", "id": self._id, "status": status, "call_id": self._call_id, "name": self._name,
            "arguments": self._arguments,
        }  # fmt: skip

    def _event(self, name: str, /, **members: Any) -> Event:
        return name, {"item_id": self._id, "output_index": self._place, **members}
