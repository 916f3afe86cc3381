"""Answers of `/v1/responses`, whole and as events that have names and numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from services.client import Chunk, Completion, Finished, Request
from services.client.completion import Metrics, Resolved, Usage
from services.http.errors import ApiError
from services.http.kolm_member import KolmMember, speculative_decoding

if TYPE_CHECKING:
    from services.http.responses import ResponseFields

_INCOMPLETE = {"length": "max_output_tokens", "cancelled": "cancelled", "error": "server_error"}


class ResponseAnswer:
    """The answer to one request, once the server has resolved it. One message of one text."""

    def __init__(
        self, fields: ResponseFields, asked: Request, resolved: Resolved, promise: bytes | None, *, files: bool
    ) -> None:
        self._kolm = KolmMember(asked, resolved, promise, files=files)
        self._item = "msg_" + resolved.request_id
        self._numbers, self._written = 0, list[str]()  # of a stream: events so far, and their text
        sampling = resolved.sampling
        self._common: dict[str, Any] = {
            "id": "resp_" + resolved.request_id,
            "object": "response",
            "created_at": int(time.time()),
            "model": fields.model or resolved.base_cid,
            "instructions": fields.instructions,
            "max_output_tokens": sampling.get("max_tokens"),
            "temperature": sampling.get("temperature"),
            "top_p": sampling.get("top_p"),
            "text": {"format": {"type": "text"}},
            "tools": [],
            "tool_choice": "none",
            "parallel_tool_calls": bool(fields.parallel_tool_calls),
            "previous_response_id": None,
            "truncation": "disabled",
            "store": False,
            "metadata": {},
            "error": None,
        }

    def whole(self, completion: Completion) -> dict[str, Any]:
        choice = completion.choices[0]
        kolm = self._kolm.ended(completion.metrics, completion.choices)
        return self._ended(choice.text, choice.finish_reason, completion.usage, completion.metrics, kolm)

    def openings(self) -> list[dict[str, Any]]:
        created = self._response("in_progress", [], kolm=self._kolm.started())
        message = self._message("", "in_progress") | {"content": []}
        return [
            self._event("response.created", response=created),
            self._event("response.in_progress", response=created),
            self._event("response.output_item.added", output_index=0, item=message),
            self._part_event("response.content_part.added", part=_part("")),
        ]

    def piece(self, chunk: Chunk) -> list[dict[str, Any]]:
        if not chunk.text:
            return []
        self._written.append(chunk.text)
        return [self._part_event("response.output_text.delta", delta=chunk.text, logprobs=[])]

    def closing(self, finished: Finished) -> list[dict[str, Any]]:
        """The receipt is in the last event, with the whole response."""
        text = "".join(self._written)
        kolm = self._kolm.ended(finished.metrics, [finished])
        response = self._ended(text, finished.finish_reason, finished.usage, finished.metrics, kolm)
        return [
            self._part_event("response.output_text.done", text=text, logprobs=[]),
            self._part_event("response.content_part.done", part=_part(text)),
            self._event("response.output_item.done", output_index=0, item=response["output"][0]),
            self._event(f"response.{response['status']}", response=response),
        ]

    def endings(self, finished: Sequence[Finished]) -> list[Any]:
        return []

    def failed(self, error: ApiError) -> dict[str, Any]:
        return self._event("error", **{name: error.body()["error"][name] for name in ("code", "message", "param")})

    def _ended(
        self, text: str, finish_reason: str, usage: Usage, metrics: Metrics, kolm: dict[str, Any]
    ) -> dict[str, Any]:
        why = _INCOMPLETE.get(finish_reason)
        status = "completed" if why is None else "incomplete"
        more = {"usage": _usage(usage), "metrics": speculative_decoding(metrics), "kolm": kolm}
        output = [self._message(text, status)]
        return self._response(status, output, **more) | {"incomplete_details": why and {"reason": why}}

    def _response(self, status: str, output: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._common, "status": status, "incomplete_details": None, "output": output, "usage": None, **more}

    def _message(self, text: str, status: str) -> dict[str, Any]:
        return {
            "type": "message", "id": self._item, "status": status, "role": "assistant", "content": [_part(text)],
        }  # fmt: skip

    def _part_event(self, name: str, **members: Any) -> dict[str, Any]:
        return self._event(name, item_id=self._item, output_index=0, content_index=0, **members)

    def _event(self, name: str, **members: Any) -> dict[str, Any]:
        self._numbers += 1
        return {"type": name, "sequence_number": self._numbers - 1, **members}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }
