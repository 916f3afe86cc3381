"""Answers of `/v1/responses`, whole and as events that have names and numbers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from services.client.generation.completion import (
    Choice,
    Chunk,
    Completion,
    Finished,
    Metrics,
    PositionLogprobs,
    Resolved,
    Usage,
)
from services.client.generation.output_reader import Part, output_reader
from services.client.generation.request import Request, call_id
from services.client.generation.tool_call_reader import Arguments, CallBegins, Text
from services.http.answer import KolmMember, finish_reason, response_logprobs, speculative_decoding
from services.http.api_error import ApiError
from services.http.fields import NAMES, turn_names
from services.http.response_fields import ResponseFields

Event = tuple[str, dict[str, Any]]
"""An event's name, and its members without its number."""


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


class ResponseAnswer:
    """The answer to one request, once the server has resolved it. One message, unless there are calls of tools.

    Thoughts are left out, unless log-probabilities are asked for, which are of all tokens.
    """

    def __init__(self, fields: ResponseFields, asked: Request, resolved: Resolved, promise: bytes | None) -> None:
        self._kolm = KolmMember(asked, resolved, promise, files=fields.wants_files)
        self._request_id, self._thinks = resolved.request_id, resolved.thoughts is not None
        self._numbers, self._items = 0, list[MessageItem | CallItem]()
        self._reader = None if fields.logprobs is not None else output_reader(resolved, asked)
        sampling = resolved.sampling
        self._common: dict[str, Any] = {
            "id": "resp_" + resolved.request_id,
            "object": "response",
            "created_at": int(time.time()),
            "model": resolved.model,
            "instructions": fields.instructions,
            "max_output_tokens": sampling.get("max_tokens"),
            "temperature": sampling.get("temperature"),
            "top_p": sampling.get("top_p"),
            "top_logprobs": fields.top_logprobs or 0,
            "text": fields.text_settings(),
            **fields.tool_settings(),
            "previous_response_id": None,
            "truncation": "disabled",
            "store": False,
            "metadata": {},
            "error": None,
        }

    def whole(self, completion: Completion) -> dict[str, Any]:
        choice = completion.choices[0]
        self._opened(), self._read(choice.text, choice.logprobs), self._held()
        kolm = self._kolm.whole(completion)
        return self._ended(choice, completion.usage, completion.metrics, kolm)

    def openings(self) -> list[dict[str, Any]]:
        created = self._response("in_progress", [], kolm=self._kolm.started())
        return [
            self._event("response.created", response=created),
            self._event("response.in_progress", response=created | {"kolm": self._kolm.resolved()}),
            *self._numbered(self._opened()),
        ]

    def piece(self, chunk: Chunk) -> list[dict[str, Any]]:
        return self._numbered(self._read(chunk.text, chunk.logprobs))

    def closing(self, finished: Finished) -> list[dict[str, Any]]:
        """The receipt is in the last event, with the whole response."""
        held = self._held()
        kolm = self._kolm.ended(finished.metrics, [finished])
        response = self._ended(finished, finished.usage, finished.metrics, kolm)
        status = response["status"]
        return [
            *self._numbered([*held, *self._items[-1].closed(self._last_status(status))]),
            self._event(f"response.{status}", response=response),
        ]

    def endings(self, finished: Sequence[Finished]) -> list[Any]:
        return []

    def failed(self, error: ApiError) -> dict[str, Any]:
        """`error.code` is one of OpenAI's words; kolm's own is in the member `kolm`."""
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        kolm = self._kolm.resolved() | error.kolm | {"error": error.code}
        response = self._response("failed", self._output("incomplete"), kolm=kolm)
        return self._event("response.failed", response=response | {"error": {"code": code, "message": error.message}})

    def _opened(self) -> list[Event]:
        """The events of the first item. If calls are possible, the first item opens once its kind is known."""
        return self._begun(MessageItem(self._item_id("msg"), 0)) if self._reader is None else []

    def _read(self, text: str, positions: Sequence[PositionLogprobs]) -> list[Event]:
        if self._reader is not None:
            return self._of_parts(self._reader.feed(text))
        (message,) = self._items
        assert isinstance(message, MessageItem)
        return message.add(text, positions)

    def _held(self) -> list[Event]:
        """The text that the reader held back; with no item at all an empty message."""
        events = [] if self._reader is None else self._of_parts(self._reader.end())
        return events if self._items else self._begun(MessageItem(self._item_id("msg"), 0))

    def _of_parts(self, parts: Iterable[Part]) -> list[Event]:
        events: list[Event] = []
        for part in parts:
            last = self._items[-1] if self._items else None
            match part:
                case Text() if not isinstance(last, MessageItem):
                    events += self._begun(MessageItem(self._item_id("msg"), len(self._items)))
                case CallBegins():
                    calls = sum(isinstance(item, CallItem) for item in self._items)
                    of_call = call_id(self._request_id, 0, calls)
                    events += self._begun(CallItem(self._item_id("fc"), len(self._items), of_call, part.name))
            if isinstance(part, Text | Arguments):
                follows_call = isinstance(part, Text) and isinstance(last, CallItem)
                events += self._items[-1].add(part.text.lstrip() if follows_call else part.text)
        return events

    def _begun(self, item: MessageItem | CallItem) -> list[Event]:
        before = self._items[-1].closed("completed") if self._items else []
        self._items.append(item)
        return [*before, *item.opened()]

    def _item_id(self, kind: str) -> str:
        number = f"_{len(self._items)}" if self._items else ""
        return f"{kind}_{self._request_id}{number}"

    def _ended(self, ended: Choice | Finished, usage: Usage, metrics: Metrics, kolm: dict[str, Any]) -> dict[str, Any]:
        """The response after its last item. If a stop string cut it off within a call, it is incomplete, for none of
        OpenAI's reasons.
        """
        cut_off = self._reader is not None and self._reader.cut_off
        calls = sum(isinstance(item, CallItem) for item in self._items)
        why = finish_reason(ended, calls, cut_off=cut_off)
        status = "incomplete" if cut_off or why == "length" else "completed"
        details = {"reason": "max_output_tokens" if why == "length" else None} if status == "incomplete" else None
        more = {"usage": _usage(usage, thinks=self._thinks), "metrics": speculative_decoding(metrics), "kolm": kolm}
        return self._response(status, self._output(status), **more) | {"incomplete_details": details}

    def _output(self, status: str) -> list[dict[str, Any]]:
        """The items of a response that has this status."""
        if not self._items:
            return []
        *whole, last = self._items
        return [*(item.value("completed") for item in whole), last.value(self._last_status(status))]

    def _last_status(self, status: str) -> str:
        """The last item's. A call is completed if its arguments are."""
        is_whole = self._reader is not None and isinstance(self._items[-1], CallItem) and not self._reader.is_open
        return "completed" if is_whole else status

    def _response(self, status: str, output: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._common, "status": status, "incomplete_details": None, "output": output, "usage": None, **more}

    def _numbered(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        return [self._event(name, **members) for name, members in events]

    def _event(self, name: str, /, **members: Any) -> dict[str, Any]:
        self._numbers += 1
        return {"type": name, "sequence_number": self._numbers - 1, **members}


def _usage(usage: Usage, *, thinks: bool) -> dict[str, Any]:
    """OpenAI's `usage`, without the tokens of thoughts if the model `thinks`: they are not counted."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
        "output_tokens": usage.completion_tokens,
        **({} if thinks else {"output_tokens_details": {"reasoning_tokens": 0}}),
        "total_tokens": usage.total_tokens,
    }


class ResponseDialect:
    """The dialect of responses."""

    def __init__(self, fields: ResponseFields) -> None:
        self.fields = fields

    @property
    def names(self) -> Mapping[str, str]:
        names = {**NAMES, "messages": "input", "sampling.logprobs": "top_logprobs"}
        names["sampling.max_tokens"] = "max_output_tokens"
        if self.fields.text is not None and self.fields.text.format is not None:
            names["sampling.structured_outputs.json"] = "text.format.schema"
        return names | turn_names(self.fields.turns())

    def request(self) -> Request:
        asked = self.fields
        sampling = asked.sampling(asked.max_output_tokens, asked.logprobs)
        return asked.request(sampling, messages=[each.message for each in asked.turns()], tools=asked.callable())

    def answer(self, asked: Request, resolved: Resolved, promise: bytes | None) -> ResponseAnswer:
        return ResponseAnswer(self.fields, asked, resolved, promise)
