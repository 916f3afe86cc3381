"""The request of a call: its id, and its message, read within limits once the caller is known, and decoded."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from services.runtime.calls.limits import CallLimits
from services.runtime.errors import InvalidArgument

REQUEST_ID_KEY = "kolm-request-id"
"""The metadata key of the request's id. A caller may send one; the server returns one in the trailing metadata."""

current_request_id: ContextVar[str] = ContextVar("current_request_id", default="-")
"""The id of the call that this task serves; "-" outside of calls."""

_ACCEPTABLE = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def request_id_from(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The caller's id if it sent a valid one, else a new one."""
    for key, value in metadata:
        if key == REQUEST_ID_KEY and isinstance(value, str) and _ACCEPTABLE.fullmatch(value):
            return value
    return str(uuid.uuid4())


Context = grpc.aio.ServicerContext[Any, Any]

_LARGE_BYTES = 64 * 1024
_MOST_PARTS = 16_384
"""Messages, texts and entries of maps within a request that is large. Two bytes make an empty one, which takes a
hundred where it is read and a thousand where it is answered; those that callers send hold as many bytes as they take.
"""


@dataclass(frozen=True, slots=True)
class Requests:
    """Of one method, `small` ones where anybody may call it. gRPC itself would read a unary request before anything
    else, whoever sends it.
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
                request = await self._next(context, caller, held)
            if request is grpc.aio.EOF:
                raise InvalidArgument("request", f"expected a message, which every call of {self.method} has")
            yield request

    async def _stream(self, context: Context, caller: str) -> AsyncGenerator[Any]:
        """The first message is there at once, or soon, as that of a unary call is; the next may take its time."""
        reading = self.limits.reading(caller)
        while True:
            async with AsyncExitStack() as held:
                async with reading:
                    request = await self._next(context, caller, held)
                if request is grpc.aio.EOF:
                    return
                yield request
                del request
            reading = self.limits.awaiting()

    async def _next(self, context: Context, caller: str, held: AsyncExitStack) -> Any:
        """The next message, decoded, with memory for it until `held` is left; grpc.aio.EOF where there is none."""
        raw: Any = await context.read()
        if raw is grpc.aio.EOF:
            return raw
        if self.small and len(raw) > _LARGE_BYTES:
            problem = f"measures {len(raw)} bytes; {self.method}, which is open to anybody, takes {_LARGE_BYTES}"
            raise InvalidArgument("request", problem, reason="REQUEST_TOO_LARGE")
        await held.enter_async_context(self.limits.holding(caller, len(raw)))
        return self._decoded(raw)

    def _decoded(self, raw: bytes) -> Any:
        """Nothing else is read meanwhile, so that of requests of too many parts only one is in memory."""
        if self.deserialize is None:
            return raw
        try:
            request = self.deserialize(raw)
        except DecodeError:
            problem = f"not a valid request message of {self.method} (wrong bytes, or text that is not UTF-8)"
            raise InvalidArgument("request", problem, reason="MALFORMED_REQUEST") from None
        if len(raw) > _LARGE_BYTES and _parts(request, _MOST_PARTS) > _MOST_PARTS:
            del request  # or it would stay for as long as somebody has the error
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
