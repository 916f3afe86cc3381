"""The calls of every server: request ids, access, limits, decoding, error mapping, measurement, pages of lists.

The interceptor reads and decodes requests itself: only after it has accepted the call, and with INVALID_ARGUMENT, not
INTERNAL, for malformed bytes. It writes streams itself, so that a servicer's generator is closed as soon as a call ends
early.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import inspect
import logging
import re
import struct
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from services.runtime.access import Access, current_principal
from services.runtime.credentials import LOCAL_CALLER
from services.runtime.errors import (
    DETAILS_KEY,
    Aborted,
    Internal,
    InvalidArgument,
    KolmError,
    Unimplemented,
    to_status,
    without_frames,
)
from services.runtime.limits import CallLimits, arriving_within
from services.runtime.metrics import CallMetrics
from services.runtime.tracing import current_trace, trace_from

_log = logging.getLogger(__name__)

REQUEST_ID_KEY = "kolm-request-id"
"""The metadata key of the request's id. A caller may send one; the server returns one in the trailing metadata."""

current_request_id: ContextVar[str] = ContextVar("current_request_id", default="-")
"""The id of the call that this task serves; "-" outside of calls."""

_ACCEPTABLE = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

Context = grpc.aio.ServicerContext[Any, Any]
_LARGE_BYTES = 64 * 1024

_MOST_PARTS = 16_384
"""Most messages, texts and entries of maps within a large request. An empty one has two bytes on the wire, and takes a
hundred when it is read and a thousand when it is answered; those of honest callers have more contents.
"""

_HEALTH_CHECK = "/grpc.health.v1.Health/Check"

STALLED_SECONDS = 60.0
"""How long a caller may take nothing of a stream, once the buffers on the way are full, before its call ends."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
_DIGEST_BYTES = 18  # 27 bytes in all: whole groups of base64, so that no token has a second spelling
_LAYOUT = struct.Struct(f">BQ{_DIGEST_BYTES}s")
_VERSION = 1


def request_id_from(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The caller's id if it sent a valid one, else a new one."""
    for key, value in metadata:
        if key == REQUEST_ID_KEY and isinstance(value, str) and _ACCEPTABLE.fullmatch(value):
            return value
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of one method, which are `small` if it needs no credential.

    gRPC itself would read a unary request before anything else, from any sender.
    """

    method: str
    streamed: bool
    deserialize: Callable[[bytes], Any] | None
    limits: CallLimits
    small: bool = False

    @asynccontextmanager
    async def of(self, context: Context, caller: str) -> AsyncIterator[Any]:
        """The request of a unary call, the iterator of a streaming one; in this block there is memory for it.

        Raises InvalidArgument, DeadlineExceeded; for streamed ones, the iterator does.
        """
        if self.streamed:
            async with aclosing(self._stream(context, caller)) as requests:
                yield requests
            return
        async with AsyncExitStack() as held:
            async with self.limits.reading(caller):
                request = await self._next(context, caller, held, self.limits.limits.reading_seconds)
            if request is grpc.aio.EOF:
                raise InvalidArgument("request", f"expected a message, which every call of {self.method} has")
            yield request

    async def _stream(self, context: Context, caller: str) -> AsyncGenerator[Any]:
        """Read a message. The first arrives with its call, or soon after it; later ones may take any time."""
        reading: AbstractAsyncContextManager[None] = self.limits.reading(caller)
        seconds = self.limits.limits.reading_seconds
        while True:
            async with AsyncExitStack() as held:
                async with reading:
                    request = await self._next(context, caller, held, seconds)
                if request is grpc.aio.EOF:
                    return
                yield request
                del request
            reading, seconds = nullcontext(), self.limits.limits.idle_seconds

    async def _next(self, context: Context, caller: str, held: AsyncExitStack, seconds: float) -> Any:
        """The next message, which has `seconds` to arrive, decoded, with memory for it until `held` is left;
        grpc.aio.EOF after the last.
        """
        async with arriving_within(seconds):
            raw: Any = await context.read()
        if raw is grpc.aio.EOF:
            return raw
        if self.small and len(raw) > _LARGE_BYTES:
            problem = f"has {len(raw)} bytes; {self.method}, which needs no credential, takes {_LARGE_BYTES}"
            raise InvalidArgument("request", problem, reason="REQUEST_TOO_LARGE")
        await held.enter_async_context(self.limits.holding(caller, len(raw)))
        return self._decoded(raw)

    def _decoded(self, raw: bytes) -> Any:
        """Decode a large request while no other is read, so that only one with too many parts is in memory."""
        if self.deserialize is None:
            return raw
        try:
            request = self.deserialize(raw)
        except DecodeError:
            problem = f"not a valid request message of {self.method} (wrong bytes, or text that is not UTF-8)"
            raise InvalidArgument("request", problem, reason="MALFORMED_REQUEST") from None
        if len(raw) > _LARGE_BYTES and _parts(request, _MOST_PARTS) > _MOST_PARTS:
            del request  # or it would live as long as the error, whose frames refer to it
            problem = (
                f"expected at most {_MOST_PARTS} messages and texts in a request of more than {_LARGE_BYTES} bytes"
            )
            raise InvalidArgument("request", f"{problem}; send several", reason="TOO_MANY_PARTS")
        return request


def _parts(message: Message, most: int) -> int:
    """The messages, texts and entries of maps within a message; it stops to count above `most`."""
    found = 0
    for field, value in message.ListFields():
        values = value if field.is_repeated else (value,)
        kind = field.message_type
        if kind is not None or field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            found += len(values)
        if kind is None or kind.GetOptions().map_entry:
            continue
        for each in values:
            if found > most:
                return found
            found += _parts(each, most - found)
    return found


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
    """One handler within the interceptor's steps."""

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
        """Give the call an id, check access and limits, map its errors to a status, measure it. Yield the caller's
        name for limits.

        Only AbortError and cancellation leave this block.
        """
        metadata = context.invocation_metadata() or ()
        request_id = request_id_from(metadata)
        current_request_id.set(request_id)
        current_trace.set(trace_from(metadata))
        context.set_trailing_metadata(((REQUEST_ID_KEY, request_id),))
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
            failure = without_frames(_as_kolm_error(self._method, error))
            code = failure.code
        finally:
            seconds = time.perf_counter() - started
            self._metrics.observe(self._method, code, seconds)
        if failure is not None:
            refused = {"method": self._method, "code": failure.code.name, "reason": failure.reason}
            principal = current_principal.get()
            known = principal.authenticated or principal == LOCAL_CALLER
            level = logging.INFO if known else logging.DEBUG  # strangers fill no log; metrics count them
            _log.log(level, "call failed", extra={"event": {**refused, "seconds": round(seconds, 4)}})
            await _abort(context, failure, request_id)


def _as_kolm_error(method: str, error: Exception) -> KolmError:
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
        with _StallTimer(STALLED_SECONDS) as timer:
            async for response in responses:
                timer.begin()
                await context.write(response)
                timer.end()


class _StallTimer:
    """Ends the task's call if one write takes longer than `seconds`. A timer for each write would cost more than the
    rest of a short message.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began: float | None = None  # the write that runs
        self._stalled = False
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer = self._loop.call_later(seconds, self._look)

    def begin(self) -> None:
        self._began = self._loop.time()

    def end(self) -> None:
        self._began = None

    def _look(self) -> None:
        now = self._loop.time()
        began = now if self._began is None else self._began
        if now - began < self._seconds:
            self._timer = self._loop.call_at(began + self._seconds, self._look)
        elif self._task is not None:
            self._stalled = True
            self._task.cancel()

    def __enter__(self) -> _StallTimer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Raise Aborted if this object has cancelled the task."""
        self._timer.cancel()
        if self._stalled and kind is asyncio.CancelledError and self._task is not None and not self._task.uncancel():
            message = f"nothing of this stream was read for {self._seconds:g} s"
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


def page_size(requested: int) -> int:
    """How many rows to return: 0 is the default, anything above the maximum is the maximum (AIP-158)."""
    return min(requested or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)


def page_token(kind: str, filters: bytes, position: int) -> str:
    """A token for the page that starts at `position` (0 to 2^64 - 1) of the list `kind` under `filters`."""
    packed = _LAYOUT.pack(_VERSION, position, _digest(kind, filters, position))
    return base64.urlsafe_b64encode(packed).decode("ascii")


def page_position(token: str, kind: str, filters: bytes) -> int:
    """The start of the page of `token`; 0 for the empty token. Raises InvalidArgument on `page_token`."""
    if not token:
        return 0
    try:
        packed = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        version, position, digest = _LAYOUT.unpack(packed)
    except (UnicodeEncodeError, binascii.Error, struct.error):
        raise _bad_token() from None
    if version != _VERSION or digest != _digest(kind, filters, position):
        raise _bad_token()
    return int(position)


def _digest(kind: str, filters: bytes, position: int) -> bytes:
    parts = (b"kolm.page.v1", kind.encode(), filters, struct.pack(">Q", position))
    return hashlib.sha256(b"".join(struct.pack(">Q", len(part)) + part for part in parts)).digest()[:_DIGEST_BYTES]


def _bad_token() -> InvalidArgument:
    expected = "expected next_page_token of an earlier page of this list, with the same filter"
    return InvalidArgument("page_token", expected, reason="BAD_PAGE_TOKEN")
