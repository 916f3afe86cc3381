"""The span of a call that a server answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc

from services.client.connection import tracing


class CallSpan:
    """The current span of the task from here to `end`, below the caller's. Nothing where the program does not trace."""

    def __init__(self, path: str, metadata: Iterable[tuple[str, str | bytes]], request_id: str) -> None:
        """`path` is gRPC's `/package.Service/Method`."""
        self._span: Any = None
        if not tracing.in_use():
            return
        from opentelemetry import context, trace

        carrier = {key: value for key, value in metadata if isinstance(value, str)}
        attributes = tracing.rpc_attributes(path) | {"kolm.request_id": request_id}
        self._span = tracing.begun(path.removeprefix("/"), "SERVER", tracing.extracted(carrier), **attributes)
        self._token = context.attach(trace.set_span_in_context(self._span))

    def end(self, code: grpc.StatusCode) -> None:
        """The call has ended like this. From the task that began it."""
        if self._span is not None:
            from opentelemetry import context

            context.detach(self._token)
            tracing.end(self._span, code)
