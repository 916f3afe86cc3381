"""Answers, whole and as events: OpenAI's members, log-probabilities, and the member `kolm` with the receipts."""

from __future__ import annotations

import base64
import codecs
import time
from collections.abc import Collection, Sequence
from typing import Any

from ledger.bundle.receipt_file import ReceiptFile
from ledger.documents.receipt import ENGINE
from ledger.keys.envelope import Envelope
from services.client.generation.completion import (
    Choice,
    Chunk,
    Completion,
    Finished,
    Metrics,
    PositionLogprobs,
    Receipt,
    Resolved,
    TokenLogprob,
    Usage,
)
from services.client.generation.completion_wire import metrics_of, usage_of
from services.client.generation.request import Request
from services.http.api_error import ApiError
from services.http.calls import DONE, ChoiceDialect

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"

_FINGERPRINT_DIGITS = 12  # of the profile's identifier, 48 bits: enough to see that it is another one

_ACCEPTANCE = (
    "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos", "acceptance_rate",
    "mean_acceptance_length", "target_passes",
)  # fmt: skip
"""Under the names of `SpeculationMetrics`: `mean_acceptance_length` is over all passes."""


def finish_reason(ended: Choice | Finished, calls: int, *, cut_off: bool) -> str:
    """Why an output with `calls` calls of tools ended, in the words of OpenAI's chats: stop, length or tool_calls.

    An output of whole calls has `tool_calls`, also if a stop string ended it after them. If it is `cut_off` within a
    call by a stop string, it has `stop`: the arguments of its last call may be no JSON.
    """
    return "tool_calls" if calls and not cut_off and ended.finish_reason == "stop" else ended.finish_reason


def chat_logprobs(positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
    """`logprobs` of a chat's choice."""
    return {"content": response_logprobs(positions), "refusal": None}


def response_logprobs(positions: Sequence[PositionLogprobs]) -> list[dict[str, Any]]:
    """`logprobs` of a response's text."""
    return [{**_token(each.chosen), "top_logprobs": [_token(other) for other in each.top]} for each in positions]


class TextLogprobs:
    """`logprobs` of one choice of a completion, as its text comes.

    Tokens wait for their text, which the server holds back while characters are undecided. Tokens of a matched stop
    string, which is no part of the text, are at its end.
    """

    def __init__(self) -> None:
        self._offsets = TextOffsets()
        self._written = 0  # characters
        self._waiting: list[tuple[PositionLogprobs, int]] = []  # with their places in the text

    def add(self, added: Choice | Chunk) -> dict[str, Any]:
        """The log-probabilities of the next tokens whose places in the text are known."""
        self._written += len(added.text)
        self._waiting += [(each, self._offsets.next(_bytes(each.chosen))) for each in added.logprobs]
        return self._next(sum(place <= self._written for _, place in self._waiting))

    def end(self) -> dict[str, Any]:
        """The log-probabilities of the tokens that still wait."""
        return self._next(len(self._waiting))

    def _next(self, count: int) -> dict[str, Any]:
        placed, self._waiting = self._waiting[:count], self._waiting[count:]
        return {
            "tokens": [_name(each.chosen) for each, _ in placed],
            "token_logprobs": [each.chosen.logprob for each, _ in placed],
            "top_logprobs": [_by_name(each) for each, _ in placed],
            "text_offset": [min(place, self._written) for _, place in placed],
        }


class TextOffsets:
    """The places of tokens in their text, in characters. A token's place is the place of the character that contains
    its first byte; bytes outside of characters count as U+FFFD, as in the decoded text.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._before = 0  # whole characters

    def next(self, token: bytes) -> int:
        """The place of the next token, which adds these bytes."""
        if token and token[0] & 0xC0 != 0x80:  # it continues no character
            self._before += len(self._decoder.decode(b"", final=True))
        place = self._before
        self._before += len(self._decoder.decode(token))
        return place


def _bytes(token: TokenLogprob) -> bytes:
    """The bytes that a token adds to the text."""
    return b"" if token.special else token.token_bytes or token.text.encode()


def _name(token: TokenLogprob) -> str:
    """A token's text, or if it is part of a character, its bytes as OpenAI writes them: `bytes:\\xf0\\x9f`."""
    try:
        return token.token_bytes.decode() or token.text
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.token_bytes)


def _token(token: TokenLogprob) -> dict[str, Any]:
    """`bytes` is null for a token without bytes, and if the engine does not report them."""
    is_known = token.token_bytes or _UNKNOWN not in token.text
    return {"token": _name(token), "logprob": token.logprob, "bytes": list(_bytes(token)) or None if is_known else None}


def _by_name(position: PositionLogprobs) -> dict[str, float]:
    """The best token of each name, and the chosen one, which may share its name with a better one."""
    found: dict[str, float] = {}
    for token in position.top:
        found.setdefault(_name(token), token.logprob)
    return found | {_name(position.chosen): position.chosen.logprob}


def receipts_json(choices: Sequence[Choice | Finished], asked: Request, *, files: bool) -> list[dict[str, Any]]:
    """One object for each choice. `files` adds `file`, a receipt file without a proof: prompt, output and salts."""
    return [
        {
            "index": each.index,
            "receipt_id": each.receipt.receipt_id,
            "ledger_index": each.receipt.ledger_index,
            "pending": each.receipt.pending,
            **({"file": _receipt_file(each.receipt, asked)} if files else {}),
        }
        for each in choices
        if each.receipt is not None
    ]


def _receipt_file(receipt: Receipt, asked: Request) -> str:
    sent = tuple(asked.sent) if isinstance(asked.sent, list) else asked.sent
    return ReceiptFile(Envelope.from_bytes(receipt.envelope), receipt.content, sent, receipt.text).to_bytes().decode()


class KolmMember:
    """The member `kolm` of one answer. `files`: each receipt also as a file."""

    def __init__(self, asked: Request, resolved: Resolved, promise: bytes | None, *, files: bool) -> None:
        self._asked, self._resolved, self._promise, self._files = asked, resolved, promise, files

    def started(self) -> dict[str, Any]:
        """The members that are known before the first token, the promise among them, which a stream has once."""
        promise = None if self._promise is None else base64.b64encode(self._promise).decode()
        return {**self.resolved(), "promise": promise}

    def resolved(self) -> dict[str, Any]:
        names = ("request_id", "base_cid", "profile_cid", "method", "requested_method", "fallback_reason")
        known = {name: getattr(self._resolved, name) for name in names}
        return known | {"seed": self._resolved.sampling.get("seed"), "ai_generated": True}

    def whole(self, completion: Completion) -> dict[str, Any]:
        """All members of an answer that is no stream."""
        return self.started() | self.ended(completion.metrics, completion.choices)

    def ended(self, metrics: Metrics, choices: Sequence[Choice | Finished]) -> dict[str, Any]:
        """The members of the end of a stream."""
        receipts = receipts_json(choices, self._asked, files=self._files)
        return {
            **self.resolved(),
            "receipts": receipts,
            "acceptance": _acceptance(metrics),
        }


def fingerprint(resolved: Resolved) -> str:
    """OpenAI's `system_fingerprint`: equal ones compute the same tokens."""
    return "fp_" + resolved.profile_cid.rpartition(":")[2][:_FINGERPRINT_DIGITS]


def speculative_decoding(metrics: Metrics) -> dict[str, Any]:
    """The member `metrics`, as vLLM has it with `--per-request-spec-decode-metrics summary`.

    The histogram counts passes that verified a draft, by how many of its tokens they accepted; `num_spec_tokens` is the
    most that one accepted. Unknown counts are left out.
    """
    known, found = _acceptance(metrics), dict[str, Any]()
    steps, accepted = metrics.num_drafts, metrics.num_accepted_tokens
    if "num_drafts" in known:
        found |= {"mean_acceptance_length": 1 + accepted / steps if steps else 1.0, "num_spec_steps": steps}
    if "num_draft_tokens" in known:
        found |= {"draft_acceptance_rate": metrics.acceptance_rate, "num_accepted_draft_tokens": accepted}
        found["num_draft_tokens"] = metrics.num_draft_tokens
    if "num_accepted_tokens_per_pos" in known:
        reached = (steps, *metrics.num_accepted_tokens_per_pos)
        histogram = [here - beyond for here, beyond in zip(reached, (*reached[1:], 0), strict=True)]
        found |= {"acceptance_histogram": histogram, "num_spec_tokens": len(histogram) - 1}
    return {"speculative_decoding": found} if found else {}


def _acceptance(metrics: Metrics) -> dict[str, Any]:
    """The known counts, under their names in `SpeculationMetrics`: another engine may report no draft, tokens of drafts
    alone, or no positions.
    """
    unknown: Collection[str] = ()
    if not metrics.target_passes:
        unknown = _ACCEPTANCE if metrics.method == ENGINE else ("mean_acceptance_length", "target_passes")
    elif metrics.num_draft_tokens and not metrics.num_drafts:
        unknown = ("num_drafts", "num_accepted_tokens_per_pos")
    elif metrics.num_accepted_tokens and not metrics.num_accepted_tokens_per_pos:
        unknown = ("num_accepted_tokens_per_pos",)
    return {name: getattr(metrics, name) for name in _ACCEPTANCE if name not in unknown}


class Answer:
    """The answer to one request, once the server has resolved it."""

    def __init__(self, dialect: ChoiceDialect, asked: Request, resolved: Resolved, promise: bytes | None) -> None:
        self._dialect = dialect
        self._kolm = KolmMember(asked, resolved, promise, files=dialect.fields.wants_files)
        self._usage_wanted = dialect.fields.usage_in_stream
        self._prompt_tokens, self._so_far = resolved.prompt_tokens, 0
        self._common = {
            "id": dialect.prefix + resolved.request_id,
            "created": int(time.time()),
            "model": resolved.model,
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
            "kolm": self._kolm.whole(completion),
        }

    def openings(self) -> list[dict[str, Any]]:
        """The first events of a stream; the promise is in the first of all."""
        opening = self._dialect.opening()
        events = [self._event([_choice(each, opening)]) for each in range(self._dialect.fields.n or 1)]
        events[0]["kolm"] = self._kolm.started()
        return events

    def piece(self, chunk: Chunk) -> list[dict[str, Any]]:
        self._so_far += len(chunk.token_ids)
        return [self._event([_choice(chunk.index, piece)]) for piece in self._dialect.pieces(chunk)]

    def closing(self, finished: Finished) -> list[dict[str, Any]]:
        """The last events of one choice, with its receipt."""
        *held, last = (_choice(finished.index, piece) for piece in self._dialect.closing(finished))
        kolm = self._kolm.ended(finished.metrics, [finished])
        return [*(self._event([choice]) for choice in held), self._event([last], kolm=kolm)]

    def endings(self, finished: Sequence[Finished]) -> list[Any]:
        """The end of the stream: the usage, if the request asked for it, and the end mark."""
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
        wanted = self._usage_wanted.continuous_usage_stats
        return event | {"usage": _tokens(Usage(self._prompt_tokens, self._so_far)) if wanted else None}


def _choice(index: int, piece: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "finish_reason": None, **piece}


def _usage(usage: Usage) -> dict[str, Any]:
    """Rejected prediction tokens are not part of completion_tokens."""
    return {
        **_tokens(usage),
        "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.accepted_prediction_tokens,
            "rejected_prediction_tokens": usage.rejected_prediction_tokens,
        },
    }


def _tokens(usage: Usage) -> dict[str, Any]:
    return {name: getattr(usage, name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
