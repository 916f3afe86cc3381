"""The one interceptor of every server: request ids, access, decoding, error mapping, measurement; unary and streaming.

It decodes requests itself, so that bytes which are no message get INVALID_ARGUMENT and not INTERNAL. It writes streams
itself, so that a servicer's generator is closed at once if the call ends early.
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
from google.protobuf.message import DecodeError

from services.runtime.access.access import Access
from services.runtime.access.caller import current_principal
from services.runtime.call_span import CallSpan
from services.runtime.errors import Aborted, Internal, InvalidArgument, KolmError, Unimplemented
from services.runtime.metrics import CallMetrics
from services.runtime.request_context import REQUEST_ID_KEY, current_request_id, request_id_from
from services.runtime.status import DETAILS_KEY, to_status

_log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

STALLED_SECONDS = 60.0
"""How long a caller may take nothing of a stream, once the buffers on the way are full, before its call ends."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler of a server. Health and reflection pass through it too."""

    def __init__(self, metrics: CallMetrics, access: Access) -> None:
        self._metrics = metrics
        self._access = access

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return _Call(handler, handler_call_details.method, self._metrics, self._access).wrapped()


class _Call:
    """One handler with what the interceptor does around it."""

    def __init__(self, handler: Handler, method: str, metrics: CallMetrics, access: Access) -> None:
        self._handler = handler
        self._method = method
        self._metrics = metrics
        self._access = access

    def wrapped(self) -> Handler:
        streams_in, streams_out = self._handler.request_streaming, self._handler.response_streaming
        factory: Callable[..., Handler]
        behaviour: Any  # grpc's stubs type handlers of the sync server only
        factory, behaviour = {
            (False, False): (grpc.unary_unary_rpc_method_handler, self._handler.unary_unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, self._handler.unary_stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, self._handler.stream_unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, self._handler.stream_stream),
        }[streams_in, streams_out]
        decode = self._decode_stream if streams_in else self._decode

        async def answer(raw: Any, context: Context) -> Any:
            async with self._guard(context):
                return await behaviour(decode(raw), context)

        async def stream(raw: Any, context: Context) -> None:
            async with self._guard(context):
                await _write_all(behaviour(decode(raw), context), context)

        return factory(stream if streams_out else answer, None, self._handler.response_serializer)

    def _decode(self, raw: bytes) -> Any:
        deserialize = self._handler.request_deserializer
        try:
            return deserialize(raw) if deserialize else raw
        except DecodeError:
            problem = f"not a valid request message of {self._method} (wrong bytes, or text that is not UTF-8)"
            raise InvalidArgument("request", problem, reason="MALFORMED_REQUEST") from None

    async def _decode_stream(self, raw: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for message in raw:
            yield self._decode(message)

    @asynccontextmanager
    async def _guard(self, context: Context) -> AsyncIterator[None]:
        """Gives the call an id, lets in who may make it, maps its errors, measures it.

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
            yield
        except grpc.aio.AbortError:
            code = _as_status_code(context.code())
            raise
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:
            failure = self._as_kolm_error(error)
            code = failure.code
        finally:
            seconds = time.perf_counter() - started
            self._metrics.observe(self._method, code, seconds)
            span.end(code)
        if failure is not None:
            refused = {"method": self._method, "code": failure.code.name, "reason": failure.reason}
            _log.info("call failed", extra={"event": {**refused, "seconds": round(seconds, 4)}})
            await _abort(context, failure, request_id)

    def _as_kolm_error(self, error: Exception) -> KolmError:
        """The error for the caller; everything else goes into the log."""
        if isinstance(error, KolmError):
            return error
        if isinstance(error, NotImplementedError):  # of the generated base class: the method is not implemented
            return Unimplemented(f"{self._method} is not implemented by this server")
        _log.error("unexpected error", exc_info=error, extra={"event": {"method": self._method}})
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
