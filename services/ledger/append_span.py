"""The span of an entry on its way into the log, in the trace of the request that it is about."""

from __future__ import annotations

import asyncio

import grpc

from ledger.log.writer import Appended
from services.client import tracing


def traced(answer: asyncio.Future[Appended], traceparent: str) -> asyncio.Future[Appended]:
    """`answer`, with a span from here until it comes, below the one that `traceparent` names."""
    if not (traceparent and tracing.in_use()):
        return answer
    span = tracing.begun("kolm.ledger.append", "INTERNAL", tracing.extracted({tracing.TRACEPARENT: traceparent}))

    def came(done: asyncio.Future[Appended]) -> None:
        if done.cancelled() or done.exception() is not None:
            tracing.end(span, grpc.StatusCode.ABORTED)
        else:
            span.set_attribute("kolm.ledger.index", done.result().index)
            tracing.end(span, grpc.StatusCode.OK)

    answer.add_done_callback(came)
    return answer
