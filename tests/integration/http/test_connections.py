"""Connections of HTTP servers that say nothing, half of something, or everything in pieces."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import httpx2

from services.runtime.access import Access
from services.runtime.http.serving import Connections
from tests.access import everybody
from tests.integration.cli.scripted import ScriptedGeneration, mount
from tests.integration.http.front import Front, fronting
from tests.serving import serving

HALF = "POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 100"


async def honest(front: Front) -> int:
    async with httpx2.AsyncClient(trust_env=False) as client:
        return (await client.get(f"http://127.0.0.1:{front.port}/v1/models")).status_code


async def closed(reader: asyncio.StreamReader) -> bool:
    """Returns once the server has closed a connection, whatever it said before."""
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
    with serving(mount(ScriptedGeneration()), access=everybody()) as served:
        limits = Connections(header_seconds=0.2, body_seconds=0.2)
        async with fronting(served.address, connections=limits) as front:
            half = await front.raw(HALF, b"{")
            assert await closed(half[0])
            idle = await front.raw("GET /health HTTP/1.1")
            assert (await idle[0].readline()).split()[1] == b"200"
            assert await closed(idle[0])
            for each in (half, idle):
                each[1].close()


async def test_silent_and_half_sent_requests_keep_nobody_out() -> None:
    with serving(mount(ScriptedGeneration()), access=everybody()) as served:
        async with fronting(served.address, connections=Connections(most=20)) as front:
            silent = [await asyncio.open_connection("127.0.0.1", front.port) for _ in range(60)]
            assert await honest(front) == 200
            for _, writer in silent:
                writer.close()


async def test_half_sent_requests_of_strangers_are_over_before_their_bodies_come() -> None:
    with serving(mount(ScriptedGeneration()), access=Access()) as served:
        async with fronting(served.address, connections=Connections(most=20)) as front:
            half = [await front.raw(HALF) for _ in range(60)]
            assert await honest(front) == 401
            for reader, writer in half:
                assert await closed(reader)
                writer.close()


async def test_a_body_in_needlessly_many_pieces_is_refused() -> None:
    with serving(mount(ScriptedGeneration()), access=everybody()) as served:
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
