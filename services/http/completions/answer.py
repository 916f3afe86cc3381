"""Answers, whole and as events of a stream: OpenAI's members, and the member `kolm` with the receipts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from services.client import Chunk, Completion, Finished, Request
from services.client.generation.completion import Resolved, Usage
from services.client.generation.completion_wire import metrics_of, usage_of
from services.http.calls.api_error import ApiError
from services.http.calls.dialect import ChoiceDialect
from services.http.calls.event_stream import DONE
from services.http.members.kolm_member import KolmMember, fingerprint, speculative_decoding


class Answer:
    """The answer to one request, once the server has resolved it."""

    def __init__(
        self, dialect: ChoiceDialect, asked: Request, resolved: Resolved, promise: bytes | None, *, files: bool = False
    ) -> None:
        """`files` as in `KolmMember`."""
        self._dialect = dialect
        self._kolm = KolmMember(asked, resolved, promise, files=files or dialect.fields.wants_files)
        self._usage_wanted = dialect.fields.usage_in_stream
        self._so_far = Usage(resolved.prompt_tokens, 0)
        self._common = {
            "id": dialect.prefix + resolved.request_id,
            "created": int(time.time()),
            "model": dialect.fields.model or resolved.base_cid,
            "system_fingerprint": fingerprint(resolved),
        }

    def whole(self, completion: Completion) -> dict[str, Any]:
        return {
            **self._common,
            "object": self._dialect.whole_object,
            "choices": [
                {"index": each.index, "finish_reason": each.finish_reason} | self._dialect.choice(each)
                for each in completion.choices
            ],
            "usage": _usage(completion.usage),
            "metrics": speculative_decoding(completion.metrics),
            "kolm": self._kolm.ended(completion.metrics, completion.choices),
        }

    def openings(self) -> list[dict[str, Any]]:
        """The first events of a stream; the promise is in the first of all."""
        opening = self._dialect.opening()
        if opening is None:
            return [self._event([], kolm=self._kolm.started())]
        events = [self._event([_choice(each, opening)]) for each in range(self._dialect.fields.n or 1)]
        events[0]["kolm"] = self._kolm.started()
        return events

    def piece(self, chunk: Chunk) -> list[dict[str, Any]]:
        done = self._so_far.completion_tokens + len(chunk.token_ids)
        self._so_far = replace(self._so_far, completion_tokens=done)
        return [self._event([_choice(chunk.index, piece)]) for piece in self._dialect.pieces(chunk)]

    def closing(self, finished: Finished) -> list[dict[str, Any]]:
        """The last events of one choice, with its receipt."""
        *held, last = (_choice(finished.index, piece) for piece in self._dialect.closing(finished))
        kolm = self._kolm.ended(finished.metrics, [finished])
        return [*(self._event([choice]) for choice in held), self._event([last], kolm=kolm)]

    def endings(self, finished: Sequence[Finished]) -> list[Any]:
        """After the last choice the usage, for who asked for it."""
        return [self._usage(finished), DONE] if self._usage_wanted.include_usage else [DONE]

    def failed(self, error: ApiError) -> dict[str, Any]:
        return error.body()

    def _usage(self, finished: Sequence[Finished]) -> dict[str, Any]:
        ordered = sorted(finished, key=lambda each: each.index)
        metrics = metrics_of([each.metrics for each in ordered])
        event = self._event([], kolm=self._kolm.ended(metrics, ordered), metrics=speculative_decoding(metrics))
        return event | {"usage": _usage(usage_of([each.usage for each in ordered]))}

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        event = {**self._common, "object": self._dialect.piece_object, "choices": choices, **more}
        if not self._usage_wanted.include_usage:
            return event
        return event | {"usage": _tokens(self._so_far) if self._usage_wanted.continuous_usage_stats else None}


def _choice(index: int, piece: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "finish_reason": None, **piece}


def _usage(usage: Usage) -> dict[str, Any]:
    """Rejected prediction tokens are no part of completion_tokens."""
    return {
        **_tokens(usage),
        "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.accepted_prediction_tokens,
            "rejected_prediction_tokens": usage.rejected_prediction_tokens,
        },
    }


def _tokens(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
