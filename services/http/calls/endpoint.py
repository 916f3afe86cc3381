"""One generating endpoint: reads a body, asks the generation server, answers at once or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from services.client import AsyncRuntime, Chunk, Completion, Event, Finished, Started
from services.client import Request as GenerationRequest
from services.client.errors import Internal, KolmError
from services.client.generation.runtime import AsyncStream
from services.http.calls.api_error import ApiError, of_body, of_kolm
from services.http.calls.caller import body, token, while_there
from services.http.calls.dialect import Answering, Dialect
from services.http.calls.event_stream import EventStream, event
from services.http.settings import HttpSettings


class Endpoint:
    """`read` makes a dialect of a body. Raises ApiError; a stream that has begun ends with an error's event."""

    def __init__(self, runtime: AsyncRuntime, settings: HttpSettings, read: Callable[[bytes], Dialect]) -> None:
        self._runtime = runtime
        self._settings = settings
        self._read = read

    async def answer(self, request: Request) -> Response:
        runtime = self._runtime.with_token(token(request))
        try:
            dialect = self._read(await body(request, self._settings.max_body, self._settings.body_seconds))
        except ValidationError as error:
            raise of_body(error) from None
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
        completion = await while_there(request, self._complete(asked, dialect, runtime))
        answer = dialect.answer(asked, completion.resolved, completion.promise)
        receipts = [each.receipt.receipt_id for each in completion.choices if each.receipt is not None]
        return JSONResponse(answer.whole(completion), headers={"x-receipt-id": ", ".join(receipts)})

    async def _complete(self, asked: GenerationRequest, dialect: Dialect, runtime: AsyncRuntime) -> Completion:
        return await runtime.serve(
            asked, spec_decode=dialect.fields.spec_decode(), timeout=self._settings.request_seconds
        )

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
        return EventStream(_events(dialect, answer, events), seconds, events.close)


async def _events(dialect: Dialect, answer: Answering, events: AsyncStream[Event]) -> AsyncGenerator[bytes]:
    finished: list[Finished] = []
    try:
        for opening in answer.openings():
            yield event(opening)
        async for each in events:
            if isinstance(each, Finished):
                finished.append(each)
                made = answer.closing(each)
            else:
                made = answer.piece(each) if isinstance(each, Chunk) else []
            for value in made:
                yield event(value)
    except KolmError as error:
        yield event(answer.failed(of_kolm(error, dialect.names)))
        return
    for value in answer.endings(finished):
        yield event(value)
