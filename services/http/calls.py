"""One call to the front: who calls, its body, its dialect, and how the answer goes out, whole or as a stream."""

from __future__ import annotations

import asyncio
import codecs
import re
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Container, Coroutine, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.client.channel import AsyncStream
from services.client.errors import Internal, KolmError, Unauthenticated
from services.client.generation.completion import Choice, Chunk, Completion, Event, Finished, Resolved, Started
from services.client.generation.request import Request as GenerationRequest
from services.client.generation.runtime import AsyncRuntime
from services.http.api_error import CLOSED, RECEIPTS, ApiError, of_body, of_ending, of_kolm, stopping
from services.http.fields import CommonFields
from services.http.settings import HttpSettings
from services.runtime.tracing import TRACE_KEYS

DONE = "[DONE]"


_SEPARATORS = {character.encode(): b"\\u%04x" % ord(character) for character in "\x85\u2028\u2029"}
"""Escapes of the characters that JSON leaves as they are and `str.splitlines` takes for the end of a line."""

_Value = TypeVar("_Value")
_Fields = TypeVar("_Fields", bound=BaseModel)
_Body = TypeVar("_Body", bound=CommonFields)
_TOKEN_PREFIX = "kolm_"
_TRACE = re.compile(r"[\x20-\x7e]{1,512}")
_ASK_SECONDS = 10.0
_REMEMBERED_SECONDS = 30.0
_REMEMBERED = 4096


def event(value: Any) -> bytes:
    """One event, named if it has a `type`; `DONE` is written as it is.

    Its data is one line also for readers that split lines as Unicode does.
    """
    if value is DONE:
        return b"data: [DONE]\n\n"
    name = f"event: {value['type']}\n".encode() if "type" in value else b""
    data = msgspec.json.encode(value)
    for separator, escape in _SEPARATORS.items():
        data = data.replace(separator, escape)
    return b"%sdata: %s\n\n" % (name, data)


class EventStream(StreamingResponse):
    """Sends events as they come, for at most `seconds`. Calls `close` at the end, also if the caller has left.
    `receipts`: ids for the header.
    """

    def __init__(
        self, events: AsyncGenerator[bytes], seconds: float, close: Callable[[], None], receipts: Sequence[str] = ()
    ) -> None:
        headers = {"cache-control": "no-store"} | ({RECEIPTS: ", ".join(receipts)} if receipts else {})
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._seconds = seconds
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._seconds):  # a caller that reads slowly has no longer
                await super().__call__(scope, receive, send)
        finally:
            self._close()


class Answering(Protocol):
    """The answer to one request, once the server has resolved it: whole, or as the events of a stream."""

    def whole(self, completion: Completion) -> dict[str, Any]: ...

    def openings(self) -> list[dict[str, Any]]:
        """The first events; the promise is in the first of all."""

    def piece(self, chunk: Chunk) -> list[dict[str, Any]]:
        """Text that was added."""

    def closing(self, finished: Finished) -> list[dict[str, Any]]:
        """The last events of one choice, with its receipt."""

    def endings(self, finished: Sequence[Finished]) -> list[Any]:
        """After the last choice."""

    def failed(self, error: ApiError) -> dict[str, Any]:
        """The last event of a stream that fails."""


class Dialect(Protocol):
    """One endpoint's language: values in, values out. One instance a request, for a piece depends on earlier ones."""

    @property
    def fields(self) -> CommonFields: ...

    @property
    def names(self) -> Mapping[str, str]:
        """The caller's names of the generation server's fields, if they differ from the last part of the path."""

    def request(self) -> GenerationRequest: ...

    def answer(self, asked: GenerationRequest, resolved: Resolved, promise: bytes | None) -> Answering: ...


class ChoiceDialect(Dialect, Protocol):
    """A dialect whose answers have choices.

    `prefix` begins the ids of answers; `whole_object` and `piece_object` are the member `object` of an answer and of an
    event of a stream.
    """

    prefix: str
    whole_object: str
    piece_object: str

    def choice(self, choice: Choice) -> dict[str, Any]:
        """A member of `choices` of a whole answer, without index."""

    def opening(self) -> dict[str, Any]:
        """The first piece of each choice, without text."""

    def pieces(self, chunk: Chunk) -> list[dict[str, Any]]:
        """The addition."""

    def closing(self, finished: Finished) -> list[dict[str, Any]]:
        """The text that was held back, and the piece that brings `finish_reason`."""


def token(request: Request) -> str:
    """The caller's token, or an empty text: the generation server decides on both.

    OpenAI's clients always send a key; a key of another form than kolm's is ignored.
    """
    scheme, _, sent = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and sent.startswith(_TOKEN_PREFIX):
        return sent
    if (key := request.headers.get("x-api-key", "")).startswith(_TOKEN_PREFIX):  # Anthropic's clients
        return key
    return ""


def trace(request: Request) -> tuple[tuple[str, str], ...]:
    """The caller's W3C trace context, as metadata. Headers that metadata cannot have are left out."""
    sent = ((key, request.headers.get(key, "")) for key in TRACE_KEYS)
    return tuple((key, value) for key, value in sent if _TRACE.fullmatch(value))


class Callers:
    """Access by the generation server's decision: the front has no file of principals and trusts no address.

    A permitted caller is remembered for a while, which saves most of these calls. The server decides again on each
    request's own call. For one event loop.
    """

    def __init__(self, runtime: AsyncRuntime, clock: Callable[[], float] = time.monotonic) -> None:
        self._runtime = runtime
        self._clock = clock
        self._until: OrderedDict[str, float] = OrderedDict()

    async def admit(self, token: str) -> None:
        """Returns if the caller may call. Raises ApiError, also if the generation server cannot be asked."""
        if self._until.get(token, 0.0) > self._clock():
            return
        try:
            await self._runtime.with_token(token).model_info(timeout=_ASK_SECONDS)
        except Unauthenticated as error:
            raise (of_kolm(error, {}) if token else _nameless()) from None
        except KolmError as error:
            raise of_kolm(error, {}) from None
        self._until.pop(token, None)
        self._until[token] = self._clock() + _REMEMBERED_SECONDS
        if len(self._until) > _REMEMBERED:
            self._until.popitem(last=False)


class Gate:
    """Refuses callers without access before any endpoint reads a body; the paths `open_` need no access."""

    def __init__(self, app: ASGIApp, callers: Callers, open_: Container[str]) -> None:
        self._app = app
        self._callers = callers
        self._open = open_

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open:
            try:
                await self._callers.admit(token(Request(scope)))
            except ApiError as refusal:
                await refusal.response(scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _nameless() -> ApiError:
    how = "`kolm up` prints one at its start, `kolm tokens create` makes one"
    return ApiError(
        401, f"expected an API key, authorization: Bearer {_TOKEN_PREFIX}… or x-api-key: {how}", "token_required"
    )


async def _read_body(request: Request, most: int) -> bytes:
    """At most `most` bytes. Raises ApiError, ClientDisconnect."""
    if (coding := request.headers.get("content-encoding", "").strip().lower()) not in ("", "identity"):
        raise ApiError(415, f"content-encoding: is {coding[:80]!r}; expected none", "unsupported_content_encoding")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise ApiError(413, f"the body is larger than {most:,} bytes", "request_too_large")
    return bytes(body)


async def read_fields(request: Request, kind: type[_Fields], settings: HttpSettings) -> _Fields:
    """The whole body, checked. Raises ApiError if it is not JSON, too large, too slow, or has wrong members."""
    seconds = settings.body_seconds
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "expected content-type: application/json", "unsupported_media_type")
    try:
        async with asyncio.timeout(seconds):
            body = await _read_body(request, settings.max_body)
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {seconds:g} s", "request_timeout") from None
    except ClientDisconnect:
        raise _closed() from None
    try:
        return kind.model_validate_json(body.removeprefix(codecs.BOM_UTF8))
    except ValidationError as error:
        raise of_body(error) from None


async def while_there(request: Request, work: Coroutine[Any, Any, _Value]) -> _Value:
    """The result of `work`, which is cancelled if the caller leaves first. To be called after the body was read."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _closed()
        return await working
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _closed() -> ApiError:
    return ApiError(CLOSED, "the caller has left", "client_closed_request")


class Admission:
    """Counts requests from their first byte to the last byte of their answer. On one event loop."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        most = self._most if token(Request(scope)) else max(1, 3 * self._most // 4)
        if self._running >= most:
            full = ApiError(429, f"{most} requests are running; come back later", "too_many_requests")
            await full.response(scope["path"])(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1


class Interruption:
    """Ends the running calls of a front that stops, each with an error of its API. On one event loop."""

    def __init__(self) -> None:
        self.due = False
        self._ends: dict[asyncio.Task[Any] | None, Callable[[], object]] = {}  # of the running calls

    def __call__(self) -> None:
        """End all calls. Streams still send an error's event, other calls get 503."""
        self.due = True
        for end in [*self._ends.values()]:
            end()

    def end_by(self, end: Callable[[], object]) -> None:
        """`end` ends the call of the current task."""
        self._ends[asyncio.current_task()] = end

    def forget(self) -> None:
        """The call of the current task has ended."""
        self._ends.pop(asyncio.current_task(), None)


class Interruptible:
    """An app whose calls an interruption ends: by cancelling their tasks, or as `end_by` has it."""

    def __init__(self, app: ASGIApp, interruption: Interruption) -> None:
        self._app = app
        self._interruption = interruption

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task, begun = asyncio.current_task(), False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        assert task is not None
        self._interruption.end_by(task.cancel)
        try:
            await self._app(scope, receive, noted)
        except asyncio.CancelledError:
            if not self._interruption.due or begun:
                raise
            task.uncancel()
            await stopping().response(scope["path"])(scope, receive, send)
        finally:
            self._interruption.forget()


class Endpoint(Generic[_Body]):
    """Generates for bodies of one kind. Raises ApiError; a stream that has begun ends with an error's event."""

    def __init__(
        self,
        runtime: AsyncRuntime,
        settings: HttpSettings,
        interruption: Interruption,
        kind: type[_Body],
        dialect: Callable[[_Body], Dialect],
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._interruption = interruption
        self._kind = kind
        self._dialect = dialect

    async def answer(self, request: Request) -> Response:
        runtime = self._runtime.with_token(token(request), trace(request))
        dialect = self._dialect(await read_fields(request, self._kind, self._settings))
        if dialect.fields.stream_options and not dialect.fields.stream:
            raise ApiError(400, "stream_options: needs stream to be true", "invalid_value", param="stream_options")
        try:
            if dialect.fields.stream:
                return await self._streamed(request, dialect, runtime)
            return await self._whole(request, dialect, runtime)
        except KolmError as error:
            raise of_kolm(error, dialect.names) from error

    async def _whole(self, request: Request, dialect: Dialect, runtime: AsyncRuntime) -> Response:
        asked = dialect.request()
        seconds = self._settings.request_seconds
        serving = runtime.serve(asked, spec_decode=dialect.fields.spec_decode(), timeout=seconds)
        completion = await while_there(request, serving)
        receipts = [each.receipt.receipt_id for each in completion.choices if each.receipt is not None]
        for each in completion.choices:
            if (error := of_ending(each, len(each.token_ids))) is not None:
                error.receipt_ids = tuple(receipts)
                raise error
        answer = dialect.answer(asked, completion.resolved, completion.promise)
        return JSONResponse(answer.whole(completion), headers={RECEIPTS: ", ".join(receipts)})

    async def _streamed(self, request: Request, dialect: Dialect, runtime: AsyncRuntime) -> Response:
        """Answers once the server has taken the request: a refusal has a status of its own."""
        seconds = self._settings.request_seconds
        asked = dialect.request()
        events = runtime.stream(asked, spec_decode=dialect.fields.spec_decode(), timeout=seconds)
        try:
            started = await while_there(request, anext(events))
            if not isinstance(started, Started):
                raise Internal("the generation server's stream began with another event than started")
        except BaseException:
            events.close()
            raise
        answer = dialect.answer(asked, started.resolved, started.promise)
        self._interruption.end_by(events.close)
        sent = _events(dialect, answer, events, self._interruption, started.receipt_ids)
        return EventStream(sent, seconds, events.close, started.receipt_ids)


async def _events(
    dialect: Dialect,
    answer: Answering,
    events: AsyncStream[Event],
    interruption: Interruption,
    receipt_ids: Sequence[str],
) -> AsyncGenerator[bytes]:
    finished: list[Finished] = []
    try:
        for opening in answer.openings():
            yield event(opening)
        async for each in events:
            if isinstance(each, Finished):
                if (error := of_ending(each, each.usage.completion_tokens)) is not None:
                    yield event(answer.failed(error))
                    return
                finished.append(each)
                made = answer.closing(each)
            else:
                made = answer.piece(each) if isinstance(each, Chunk) else []
            for value in made:
                yield event(value)
    except (KolmError, asyncio.CancelledError) as error:  # the latter by `events.close`, too
        if interruption.due:
            yield event(answer.failed(stopping(receipt_ids)))
        elif isinstance(error, KolmError):
            yield event(answer.failed(of_kolm(error, dialect.names)))
        else:
            raise
        return
    if len(finished) < (choices := dialect.fields.n or 1):
        problem = f"the generation server's stream ended with {len(finished)} of {choices} choices"
        yield event(answer.failed(ApiError(500, problem, "internal", receipt_ids=receipt_ids)))
        return
    for value in answer.endings(finished):
        yield event(value)
