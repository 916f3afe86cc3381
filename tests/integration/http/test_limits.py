"""Limits of the front: bodies, concurrent requests, connections, slow callers."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceServicer, add_GenerationServiceServicer_to_server
from services.runtime.access import Access
from services.runtime.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    KolmError,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from services.runtime.http.serving import Connections, _listening
from services.runtime.server import Mount
from tests.access import open_access
from tests.fakes.tampered_targets import GatedTarget
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.cli.scripted import ScriptedGeneration, mount
from tests.integration.generation.deployment import PATIENCE, Deployment, until
from tests.integration.http.front import Front, answering, fronting
from tests.integration.http.test_chat import ASKED
from tests.serving import serving

LONG = {**ASKED, "max_completion_tokens": 400, "extra_body": {"ignore_eos": True}}


@pytest.fixture
async def gated(tmp_path: Path) -> AsyncIterator[tuple[Deployment, GatedTarget, Any]]:
    """A generation server whose passes wait, and its stub."""
    deployment = Deployment(tmp_path, make_tiny_model(tmp_path / "model"))
    await deployment.start_ledger()
    stub, target = await deployment.start_wrapped(GatedTarget, model_name="tiny")
    target.close()
    yield deployment, target, stub
    target.open()
    await deployment.stop()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_that_leaves_frees_its_place(gated: tuple[Deployment, GatedTarget, Any], stream: bool) -> None:
    deployment, target, stub = gated

    async def running(count: int) -> bool:
        target.let_pass()  # the engine hears of callers between two passes
        return bool((await stub.GetLoad(pb.GetLoadRequest())).running == count)

    async with fronting(deployment.generation_address, max_requests=1) as front:

        async def answered() -> bool:
            try:
                return bool((await front.client.chat.completions.create(**ASKED)).choices)
            except openai.RateLimitError:
                return False

        asking = asyncio.ensure_future(front.client.chat.completions.create(**LONG, stream=stream))
        await until(lambda: running(1))
        if stream:
            await (await asking).close()
        else:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: running(0))
        target.open()
        await until(answered)  # the front's only place is free, too, at once or soon
        cancelled, whole = await deployment.receipts(2)
        assert (cancelled.output.finish_reason, whole.output.finish_reason) == ("cancelled", "length")


async def test_one_request_too_many_is_told_to_come_back(gated: tuple[Deployment, GatedTarget, Any]) -> None:
    deployment, target, _ = gated
    async with fronting(deployment.generation_address, max_requests=1) as front:
        first = asyncio.ensure_future(front.client.chat.completions.create(**ASKED))
        await asyncio.to_thread(target.stopped.wait, PATIENCE)
        with pytest.raises(openai.RateLimitError) as caught:
            await front.client.chat.completions.create(**ASKED)
        assert (caught.value.code, caught.value.response.headers["retry-after"]) == ("too_many_requests", "1")
        assert await _status(front, "GET", b"", path="/health") == 200
        target.open()
        assert (await first).choices


async def test_a_request_that_takes_too_long_is_a_time_out(gated: tuple[Deployment, GatedTarget, Any]) -> None:
    deployment, _, _ = gated
    async with fronting(deployment.generation_address, request_seconds=0.2) as front:
        with pytest.raises(openai.APIStatusError) as caught:
            await front.client.chat.completions.create(**LONG)
        assert caught.value.status_code == 408
        with pytest.raises(openai.APIError) as ended:
            async for _ in await front.client.chat.completions.create(**LONG, stream=True):
                pass
        assert "deadline" in ended.value.message.lower()


async def test_a_body_that_is_too_large_or_too_slow_is_refused() -> None:
    with serving(mount(ScriptedGeneration())) as served:
        async with fronting(served.address, max_body=1000, body_seconds=0.2) as front:
            assert await _status(front, "POST", b" " * 1001) == 413
            assert await _status(front, "POST", b"{", length=2) == 408


class Failing(GenerationServiceServicer):
    """Refuses every request with `error`; streams only once they have begun."""

    error: KolmError

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Any) -> pb.GetModelInfoResponse:
        return pb.GetModelInfoResponse()

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        raise self.error

    async def GenerateStream(
        self, request: pb.GenerateStreamRequest, context: Any
    ) -> AsyncIterator[pb.GenerateStreamResponse]:
        yield pb.GenerateStreamResponse(started=pb.Started())
        raise self.error


async def test_errors_of_the_generation_server_have_their_statuses() -> None:
    servicer = Failing()
    mount = Mount(
        "kolm.generation.v1.GenerationService", lambda s: add_GenerationServiceServicer_to_server(servicer, s)
    )
    with serving(mount) as served:
        async with fronting(served.address) as front:
            for error, status, code, retry_after in (
                (ResourceExhausted("the queue is full", retry_after=2.5), 429, "queue_full", "3"),
                (Unavailable("stopping", retry_after=0.1, reason="STOPPING"), 503, "stopping", "1"),
                (FailedPrecondition("halted", reason="SPEC_DECODE_HALTED"), 400, "spec_decode_halted", None),
                (PermissionDenied("no"), 403, "permission_denied", None),
                (DeadlineExceeded("late"), 408, "deadline_exceeded", None),
            ):
                servicer.error = error
                with pytest.raises(openai.APIStatusError) as caught:
                    await front.client.chat.completions.create(**ASKED)
                assert (caught.value.status_code, caught.value.code) == (status, code)
                assert caught.value.response.headers.get("retry-after") == retry_after
                with pytest.raises(openai.APIError, match=error.message) as ended:
                    async for _ in await front.client.chat.completions.create(**ASKED, stream=True):
                        pass
                assert ended.value.code == code


async def _status(
    front: Front, method: str, body: bytes, *, length: int | None = None, path: str = "/v1/chat/completions"
) -> int:
    head = f"{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-type: application/json"
    reader, writer = await front.raw(f"{head}\r\ncontent-length: {length or len(body)}", body)
    answer = await reader.read()
    writer.close()
    head, _, rest = answer.decode().partition("\r\n\r\n")
    assert json.loads(rest), head
    return int(head.split()[1])


HALF = "POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 100"


async def honest(front: Front) -> int:
    async with httpx2.AsyncClient(trust_env=False) as client:
        return (await client.get(f"http://127.0.0.1:{front.port}/v1/models")).status_code


async def closed(reader: asyncio.StreamReader) -> bool:
    """Return once the server has closed a connection, whatever it sent before."""
    with suppress(ConnectionError):
        await reader.read()
    return True


async def test_a_header_that_does_not_come_or_comes_by_drips_ends_its_connection() -> None:
    async with fronting("127.0.0.1:1", connections=Connections(header_seconds=0.2)) as front:
        silent = await asyncio.open_connection("127.0.0.1", front.port)
        dripping = await asyncio.open_connection("127.0.0.1", front.port)

        async def drip() -> None:
            with suppress(ConnectionError):
                while not dripping[1].is_closing():
                    dripping[1].write(b"G")
                    await dripping[1].drain()
                    await asyncio.sleep(0.02)

        drips = asyncio.ensure_future(drip())
        assert await closed(silent[0])
        assert await closed(dripping[0])
        for each in (silent, dripping):
            each[1].close()
        await drips


async def test_a_body_that_does_not_come_ends_its_connection_and_an_idle_one_is_closed() -> None:
    with serving(mount(ScriptedGeneration()), access=open_access()) as served:
        limits = Connections(header_seconds=0.2, body_seconds=0.2)
        async with fronting(served.address, connections=limits) as front:
            half = await front.raw(HALF, b"{")
            assert await closed(half[0])
            idle = await front.raw("GET /health HTTP/1.1")
            assert (await idle[0].readline()).split()[1] == b"200"
            assert await closed(idle[0])
            for each in (half, idle):
                each[1].close()


LARGE = 32 << 20  # bytes, more than the system keeps of a connection


async def test_an_answer_that_is_left_unread_ends_its_connection() -> None:
    ended = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        left = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not left.done():
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        ended.set()

    async with answering(endless, Connections(answer_seconds=0.2)) as port:
        _, unread = await asyncio.open_connection("127.0.0.1", port)
        unread.write(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        await asyncio.wait_for(ended.wait(), PATIENCE)
        unread.close()


async def test_an_answer_that_is_still_being_read_is_not_cut_off_as_an_idle_connection() -> None:
    async with answering(Response(bytes(LARGE)), Connections(header_seconds=0.2)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.5)
        assert len(await reader.readexactly(LARGE)) == LARGE
        writer.close()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def held_open(count: int, connect: Callable[[], Awaitable[Streams]]) -> AsyncIterator[list[Streams]]:
    """Connections that are closed at the end, whatever happens."""
    streams: list[Streams] = []
    try:
        for _ in range(count):
            streams.append(await connect())
        yield streams
    finally:
        for _, writer in streams:
            writer.close()


@pytest.mark.parametrize("half", [None, "POST /v1/chat/completions HTTP/1.1\r\n", f"{HALF}\r\nhost: x\r\n\r\n{{"])
async def test_silent_and_half_sent_requests_keep_no_caller_out(half: str | None) -> None:
    with serving(mount(ScriptedGeneration()), access=open_access()) as served:
        async with fronting(served.address, connections=Connections(most=20)) as front:

            async def connect() -> Streams:
                reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
                writer.write((half or "").encode())
                return reader, writer

            async with held_open(60, connect):
                assert await honest(front) == 200


async def test_half_sent_requests_of_strangers_are_over_before_their_bodies_come() -> None:
    with serving(mount(ScriptedGeneration()), access=Access()) as served:
        async with (
            fronting(served.address, connections=Connections(most=20)) as front,
            held_open(60, lambda: front.raw(HALF)) as half,
        ):
            assert await honest(front) == 401
            for reader, _ in half:
                assert await closed(reader)


async def test_a_body_in_needlessly_many_pieces_is_refused() -> None:
    with serving(mount(ScriptedGeneration()), access=open_access()) as served:
        async with fronting(served.address) as front:
            head = "POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked"
            reader, writer = await front.raw(head, b"1\r\n \r\n" * 100_000)
            assert (await reader.readline()).split()[1] == b"400"
            writer.close()
            body = b'{"prompt": "' + b"a" * 40_000 + b'"}'
            cut = [body[at : at + 400] for at in range(0, len(body), 400)]
            pieces = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in cut)
            reader, writer = await front.raw(head, pieces + b"0\r\n\r\n")
            assert (await reader.readline()).split()[1] == b"200"
            writer.close()


def test_an_event_of_a_stream_does_not_wait_until_the_one_before_was_acknowledged() -> None:
    with (
        _listening("127.0.0.1:0") as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
