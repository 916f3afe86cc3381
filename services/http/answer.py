"""Answers, whole and as events of a stream: what OpenAI's clients expect, and the member `kolm` with the receipts."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import Any

from services.client import Chunk, Completion, Finished, Request
from services.client.collection import metrics_of, usage_of
from services.client.completion import Choice, Metrics, Resolved, Usage
from services.http.dialect import Dialect
from services.http.receipts import receipts_json

_FINGERPRINT_DIGITS = 12  # of the profile's identifier, 48 bits: enough to see that it is another one


class Answer:
    """The answer to one request, once the server has resolved it."""

    def __init__(
        self, dialect: Dialect, asked: Request, resolved: Resolved, promise: bytes | None, *, files: bool = False
    ) -> None:
        """`files`: each receipt also as a file, whether the body asks for it or not."""
        self._files = files or dialect.fields.wants_files
        self._dialect = dialect
        self._asked = asked
        self._resolved = resolved
        self._promise = promise
        self._common = {
            "id": dialect.prefix + resolved.request_id,
            "created": int(time.time()),
            "model": dialect.fields.model or resolved.base_cid,
            "system_fingerprint": "fp_" + resolved.profile_cid.rpartition(":")[2][:_FINGERPRINT_DIGITS],
        }

    def whole(self, completion: Completion) -> dict[str, Any]:
        return {
            **self._common,
            "object": self._dialect.whole_object,
            "choices": [
                {"index": each.index, "finish_reason": each.finish_reason, **self._dialect.choice(each)}
                for each in completion.choices
            ],
            "usage": _usage(completion.usage),
            "kolm": self._kolm(completion.metrics, completion.choices),
        }

    def openings(self) -> list[dict[str, Any]]:
        """The first events of a stream; the promise is in the first of all."""
        opening = self._dialect.opening()
        if opening is None:
            return [self._event([], kolm=self._start())]
        events = [self._event([_choice(each, opening)]) for each in range(self._dialect.fields.n or 1)]
        events[0]["kolm"] = self._start()
        return events

    def piece(self, chunk: Chunk) -> dict[str, Any]:
        return self._event([_choice(chunk.index, self._dialect.piece(chunk))])

    def closing(self, finished: Finished) -> dict[str, Any]:
        """The last event of one choice, with its receipt."""
        choice = _choice(finished.index, self._dialect.closing()) | {"finish_reason": finished.finish_reason}
        return self._event([choice], kolm=self._kolm(finished.metrics, [finished]))

    def usage(self, finished: Sequence[Finished]) -> dict[str, Any]:
        """The event after the last choice, for who asked for usage."""
        ordered = sorted(finished, key=lambda each: each.index)
        metrics = metrics_of([each.metrics for each in ordered])
        event = self._event([], kolm=self._kolm(metrics, ordered))
        return event | {"usage": _usage(usage_of([each.usage for each in ordered]))}

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        event = {**self._common, "object": self._dialect.piece_object, "choices": choices, **more}
        return event | {"usage": None} if self._dialect.fields.include_usage else event

    def _start(self) -> dict[str, Any]:
        """What is known before the first token."""
        resolved = self._resolved
        return {
            "request_id": resolved.request_id,
            "seed": resolved.sampling.get("seed"),
            "profile_cid": resolved.profile_cid,
            "method": resolved.method,
            "requested_method": resolved.requested_method,
            "fallback_reason": resolved.fallback_reason,
            "promise": None if self._promise is None else base64.b64encode(self._promise).decode(),
        }

    def _kolm(self, metrics: Metrics, choices: Sequence[Choice | Finished]) -> dict[str, Any]:
        receipts = receipts_json(choices, self._asked, files=self._files)
        return {**self._start(), "receipts": receipts, "acceptance": _acceptance(metrics)}


def _choice(index: int, piece: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "finish_reason": None, **piece}


def _acceptance(metrics: Metrics) -> dict[str, Any]:
    """Under vLLM's names."""
    return {
        "num_drafts": metrics.num_drafts,
        "num_draft_tokens": metrics.num_draft_tokens,
        "num_accepted_tokens": metrics.num_accepted_tokens,
        "num_accepted_tokens_per_pos": list(metrics.num_accepted_tokens_per_pos),
        "acceptance_rate": metrics.acceptance_rate,
        "mean_acceptance_length": metrics.mean_acceptance_length,
        "target_passes": metrics.target_passes,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    """Rejected prediction tokens are no part of completion_tokens."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.accepted_prediction_tokens,
            "rejected_prediction_tokens": usage.rejected_prediction_tokens,
        },
    }
