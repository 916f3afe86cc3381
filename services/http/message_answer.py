"""Answers of Anthropic's `/v1/messages`, whole and as its events: blocks of text, thoughts and calls of tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from services.client.generation.completion import Choice, Chunk, Completion, Finished, Resolved, Usage
from services.client.generation.output_reader import Part, Thought, output_reader
from services.client.generation.request import Request, call_id
from services.client.generation.tool_call_reader import CallBegins, Text
from services.http.answer import KolmMember, finish_reason, speculative_decoding
from services.http.api_error import MESSAGES, ApiError
from services.http.fields import NAMES
from services.http.message_fields import MessageFields

_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""The type of a block's additions, and the member that has them, by the type of the block."""

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageAnswer:
    """The answer to one request, once the server has resolved it. The whole answer has the blocks of the events."""

    def __init__(self, fields: MessageFields, asked: Request, resolved: Resolved, promise: bytes | None) -> None:
        self._kolm = KolmMember(asked, resolved, promise, files=fields.wants_files)
        self._resolved = resolved
        self._shows_thoughts = fields.shows_thoughts
        self._reader = output_reader(resolved, asked)
        self._blocks: list[dict[str, Any]] = []
        self._written: list[str] = []  # of each block, all that was added

    def whole(self, completion: Completion) -> dict[str, Any]:
        choice = completion.choices[0]
        self._read(choice.text), self._held()
        kolm = self._kolm.whole(completion)
        message = self._message(completion.usage) | self._why(choice)
        return message | {"content": self._content(), "metrics": speculative_decoding(completion.metrics), "kolm": kolm}

    def openings(self) -> list[dict[str, Any]]:
        message = self._message(Usage(self._resolved.prompt_tokens, 0)) | {"kolm": self._kolm.started()}
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def piece(self, chunk: Chunk) -> list[dict[str, Any]]:
        return self._read(chunk.text)

    def closing(self, finished: Finished) -> list[dict[str, Any]]:
        """The receipt is in the event with the stop reason."""
        events = [*self._held(), *self._stopped()]
        kolm = self._kolm.ended(finished.metrics, [finished])
        ended = {"usage": _usage(finished.usage), "metrics": speculative_decoding(finished.metrics), "kolm": kolm}
        return [*events, {"type": "message_delta", "delta": self._why(finished), **ended}]

    def endings(self, finished: Sequence[Finished]) -> list[Any]:
        return [{"type": "message_stop"}]

    def failed(self, error: ApiError) -> dict[str, Any]:
        return error.body(MESSAGES)

    def _message(self, usage: Usage) -> dict[str, Any]:
        return {
            "id": f"msg_{self._resolved.request_id}", "type": "message", "role": "assistant",
            "model": self._resolved.model, "content": [], "stop_reason": None, "stop_sequence": None,
            "usage": _usage(usage),
        }  # fmt: skip

    def _why(self, ended: Choice | Finished) -> dict[str, Any]:
        """After the last block."""
        sequence = ended.stop_reason if isinstance(ended.stop_reason, str) else None
        cut_off = self._reader is not None and self._reader.cut_off
        reason = _STOP_REASONS[finish_reason(ended, self._calls, cut_off=cut_off)]
        if reason == "end_turn" and sequence is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": sequence}

    @property
    def _calls(self) -> int:
        return sum(block["type"] == "tool_use" for block in self._blocks)

    def _content(self) -> list[dict[str, Any]]:
        return [_filled(block, text) for block, text in zip(self._blocks, self._written, strict=True)]

    def _read(self, text: str) -> list[dict[str, Any]]:
        if self._reader is None:
            return self._added([Text(text)])
        return self._added(self._reader.feed(text))

    def _held(self) -> list[dict[str, Any]]:
        """The parts that the reader held back; an empty block of text if the answer has no block."""
        events = [] if self._reader is None else self._added(self._reader.end())
        return events if self._blocks else [*events, *self._begun({"type": "text", "text": ""})]

    def _added(self, parts: Iterable[Part]) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for part in parts:
            last = self._blocks[-1]["type"] if self._blocks else None
            match part:
                case Thought() if not self._shows_thoughts:
                    continue
                case Thought() if last != "thinking":
                    events += self._begun({"type": "thinking", "thinking": "", "signature": ""})
                case Text() if not part.text:
                    continue
                case Text() if last != "text":
                    events += self._begun({"type": "text", "text": ""})
                case CallBegins():
                    called = call_id(self._resolved.request_id, 0, self._calls)
                    events += self._begun({"type": "tool_use", "id": called, "name": part.name, "input": {}})
            if not isinstance(part, CallBegins):
                text = part.text.lstrip() if isinstance(part, Text) and last == "tool_use" else part.text
                self._written[-1] += text
                kind, member = _DELTAS[self._blocks[-1]["type"]]
                events.append(self._event("content_block_delta", delta={"type": kind, member: text}))
        return events

    def _begun(self, block: dict[str, Any]) -> list[dict[str, Any]]:
        before = self._stopped()
        self._blocks.append(block)
        self._written.append("")
        return [*before, self._event("content_block_start", content_block=block)]

    def _stopped(self) -> list[dict[str, Any]]:
        return [self._event("content_block_stop")] if self._blocks else []

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "index": len(self._blocks) - 1, **more}


def _filled(block: dict[str, Any], text: str) -> dict[str, Any]:
    """The block with all that was added. The input of a call that was cut off, or that no JSON can hold, is empty."""
    if block["type"] != "tool_use":
        return block | {block["type"]: text}
    try:
        return block | {"input": msgspec.json.decode(text)}  # refuses NaN and unpaired surrogates
    except (ValueError, RecursionError):
        return block


def _usage(usage: Usage) -> dict[str, Any]:
    """Anthropic's `usage`; its input_tokens count the computed tokens of the prompt."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_prompt_tokens,
        "output_tokens": usage.completion_tokens,
    }


class MessageDialect:
    """The dialect of messages."""

    def __init__(self, fields: MessageFields) -> None:
        self.fields = fields

    @property
    def names(self) -> Mapping[str, str]:
        names = {**NAMES, **self.fields.names(), "sampling.stop": "stop_sequences"}
        return names | {"sampling.structured_outputs.json": "output_config.format.schema"}

    def request(self) -> Request:
        asked = self.fields
        sampling = replace(asked.sampling(asked.max_tokens, None), stop=asked.stop_sequences or ())
        turns = [each.message for each in asked.turns()]
        return asked.request(sampling, messages=turns, tools=asked.callable(), continue_final_message=asked.continues)

    def answer(self, asked: Request, resolved: Resolved, promise: bytes | None) -> MessageAnswer:
        return MessageAnswer(self.fields, asked, resolved, promise)
