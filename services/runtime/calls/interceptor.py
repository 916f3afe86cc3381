"""The one interceptor of every server: request ids, access, limits, decoding, error mapping, measurement.

It reads and decodes requests itself: not before it is clear that the call is taken, and so that bytes which are no
message get INVALID_ARGUMENT and not INTERNAL. It writes streams itself, so that a servicer's generator is closed at
once if the call ends early.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeAlias

import grpc

from services.runtime.access.access import Access, current_principal
from services.runtime.calls.limits import CallLimits
from services.runtime.calls.requests import REQUEST_ID_KEY, Requests, current_request_id, request_id_from
from services.runtime.calls.status import DETAILS_KEY, to_status
from services.runtime.errors import Aborted, Internal, KolmError, Unimplemented, without_frames
from services.runtime.telemetry.metrics import CallMetrics
from services.runtime.telemetry.tracing import CallSpan

_log = logging.getLogger(__name__)

_HEALTH_CHECK = "/grpc.health.v1.Health/Check"

Context = grpc.aio.ServicerContext[Any, Any]

STALLED_SECONDS = 60.0
"""How long a caller may take nothing of a stream, once the buffers on the way are full, before its call ends."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler of a server. Health and reflection pass through it too."""

    def __init__(self, metrics: CallMetrics, access: Access, limits: CallLimits) -> None:
        self._metrics = metrics
        self._access = access
        self._limits = limits

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return _Call(handler, handler_call_details.method, self._metrics, self._access, self._limits).wrapped()


class _Call:
    """One handler with what the interceptor does around it."""

    def __init__(self, handler: Handler, method: str, metrics: CallMetrics, access: Access, limits: CallLimits) -> None:
        self._handler = handler
        self._method = method
        self._metrics = metrics
        self._access = access
        self._limits = limits
        self._requests = Requests(
            method, handler.request_streaming, handler.request_deserializer, limits, small=access.is_open(method)
        )

    def wrapped(self) -> Handler:
        """A handler that gRPC takes for one with streamed requests: those it leaves to be read here."""
        streams_in, streams_out = self._handler.request_streaming, self._handler.response_streaming
        behaviour: Any = {  # grpc's stubs type handlers of the sync server only
            (False, False): self._handler.unary_unary,
            (False, True): self._handler.unary_stream,
            (True, False): self._handler.stream_unary,
            (True, True): self._handler.stream_stream,
        }[streams_in, streams_out]

        async def answered(context: Context, caller: str) -> Any:
            async with self._requests.of(context, caller) as request:
                called = behaviour(request, context)
                return await (_write_all(called, context) if streams_out else called)

        async def answer(_raw: Any, context: Context) -> Any:
            async with self._guard(context) as caller:  # a refusal goes out without the frame that has the request
                return await answered(context, caller)

        factory: Any = grpc.stream_stream_rpc_method_handler if streams_out else grpc.stream_unary_rpc_method_handler
        handler: Handler = factory(answer, None, self._handler.response_serializer)
        return handler

    @asynccontextmanager
    async def _guard(self, context: Context) -> AsyncIterator[str]:
        """Gives the call an id, lets in who may make it, counts it, maps its errors, measures it. Gives the caller's
        name for limits.

        Only AbortError and cancellation leave this block.
        """
        metadata = context.invocation_metadata() or ()
        request_id = request_id_from(metadata)
        current_request_id.set(request_id)
        context.set_trailing_metadata(((REQUEST_ID_KEY, request_id),))
        span = CallSpan(self._method, metadata, request_id)
        started, code, failure = time.perf_counter(), grpc.StatusCode.OK, None
        try:
            current_principal.set(self._access.admitted(self._method, context))
            caller = self._access.caller_of(context)
            streamed, vital = self._handler.request_streaming, self._method == _HEALTH_CHECK
            with self._limits.call(caller, streamed=streamed, vital=vital):
                yield caller
        except grpc.aio.AbortError:
            code = _as_status_code(context.code())
            raise
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:
            failure = without_frames(as_kolm_error(self._method, error))
            code = failure.code
        finally:
            seconds = time.perf_counter() - started
            self._metrics.observe(self._method, code, seconds)
            span.end(code)
        if failure is not None:
            refused = {"method": self._method, "code": failure.code.name, "reason": failure.reason}
            _log.info("call failed", extra={"event": {**refused, "seconds": round(seconds, 4)}})
            await _abort(context, failure, request_id)


def as_kolm_error(method: str, error: Exception) -> KolmError:
    """The error for the caller of `/package.Service/Method`; other exceptions go into the log."""
    if isinstance(error, KolmError):
        return error
    if isinstance(error, NotImplementedError):  # of the generated base class: the method is not implemented
        return Unimplemented(f"{method} is not implemented by this server")
    _log.error("unexpected error", exc_info=error, extra={"event": {"method": method}})
    return Internal()


async def _write_all(responses: Any, context: Context) -> None:
    """Responses of an async generator, one by one; a coroutine (as grpc_health uses) writes them itself."""
    if inspect.isawaitable(responses):
        await responses
        return
    async with aclosing(responses):
        async for response in responses:
            try:
                async with asyncio.timeout(STALLED_SECONDS):
                    await context.write(response)
            except TimeoutError:
                message = f"nothing of this stream was read for {STALLED_SECONDS:g} s"
                raise Aborted(message, reason="SLOW_READER") from None


async def _abort(context: Context, error: KolmError, request_id: str) -> None:
    status = to_status(error, request_id)
    trailers = ((REQUEST_ID_KEY, request_id), (DETAILS_KEY, status.SerializeToString()))
    await context.abort(error.code, status.message, trailers)


def _as_status_code(code: grpc.StatusCode | int) -> grpc.StatusCode:
    """grpc.aio reports the number after an abort, the enum before."""
    if isinstance(code, grpc.StatusCode):
        return code
    return next((each for each in grpc.StatusCode if each.value[0] == code), grpc.StatusCode.UNKNOWN)
