"""Answers of a generation server, converted, with their promise and receipts held against what was asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kolm.generation.v1 import generation_pb2 as pb
from services.client.generation import completion_wire
from services.client.generation.completion import Completion, Event, Finished, Started
from services.client.generation.request import Request
from services.client.generation.spec_decode import SpecDecodeConfig
from services.client.generation.tool_call_reader import with_calls

_PROMISE_KEY = "kolm-promise-bin"


def checked_completion(
    answer: pb.GenerateResponse,
    metadata: Mapping[str, str | bytes],
    request: Request,
    spec_decode: SpecDecodeConfig | None,
) -> Completion:
    """Of a unary call; `metadata` is its initial metadata, which has the promise. Raises ReceiptMismatch, Internal."""
    from services.client.generation.answer_check import (  # the reader of signed bytes: none so far
        check_promise,
        check_receipt,
    )

    promise = metadata.get(_PROMISE_KEY)
    completion = completion_wire.completion(answer, promise if isinstance(promise, bytes) else None)
    if completion.promise is not None:
        check_promise(completion.promise, request, completion.resolved)
    for each in completion.choices:
        if each.receipt is not None:
            check_receipt(each.receipt, request, spec_decode, completion.resolved, each.index, each.finish_reason)
    return with_calls(completion, request)


def checked_events(
    request: Request, spec_decode: SpecDecodeConfig | None
) -> Callable[[pb.GenerateStreamResponse], Event]:
    """Converts the events of one stream, in their order. Raises ReceiptMismatch, Internal."""
    from services.client.generation.answer_check import (  # while the server is at it already
        check_promise,
        check_receipt,
    )

    reader = completion_wire.StreamReader()

    def event(message: pb.GenerateStreamResponse) -> Event:
        found = reader.event(message)
        if isinstance(found, Started) and found.promise is not None:
            check_promise(found.promise, request, found.resolved)
        if isinstance(found, Finished) and found.receipt is not None and reader.resolved is not None:
            check_receipt(found.receipt, request, spec_decode, reader.resolved, found.index, found.finish_reason)
        return found

    return event
