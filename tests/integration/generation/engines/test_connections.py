"""Connections to another engine's server are kept while they are of use, and no longer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.generation.remote.connections import ConnectionBroken, Connections

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Answers each request by the next of `answers`, b"" by closing; counts its connections."""

    def __init__(self, *answers: bytes) -> None:
        self.answers, self.connections, self.seen = list(answers), 0, list[bytes]()
        self.writers: list[asyncio.StreamWriter] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        while self.answers:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")), 0)
                self.seen.append(head + await reader.readexactly(length))
            except asyncio.IncompleteReadError:
                break
            if not (answer := self.answers.pop(0)):
                break
            writer.write(answer)
        writer.close()

    @asynccontextmanager
    async def asked(self, silence_seconds: float = 5.0) -> AsyncIterator[Connections]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/prefix"
        connections = Connections(url, {"X": "y"}, connect_seconds=5.0, silence_seconds=silence_seconds)
        try:
            yield connections
        finally:
            connections.close()
            server.close()


async def _whole(connections: Connections, body: bytes | None = None) -> bytes:
    data = list[bytes]()
    async with connections.asked("/path", body) as answer:
        await answer.read(data.append)
    return b"".join(data)


async def test_a_connection_is_used_again() -> None:
    server = Server(_ANSWER, b"HTTP/1.1 100 Continue\r\n\r\n" + _ANSWER)
    async with server.asked() as connections:
        assert [await _whole(connections), await _whole(connections, b"{}")] == [b"{}", b"{}"]
    assert server.connections == 1
    assert server.seen[0].startswith(b"GET /prefix/path HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX: y\r\n" in server.seen[1]
    assert server.seen[1].endswith(b"\r\nContent-Length: 2\r\n\r\n{}")


async def test_a_kept_connection_that_its_server_closes_instead_of_answering_is_replaced() -> None:
    server = Server(_ANSWER, b"", _ANSWER)
    async with server.asked() as connections:
        assert [await _whole(connections), await _whole(connections, b"{}")] == [b"{}", b"{}"]
    assert (server.connections, len(server.seen)) == (2, 3)


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother", b"x"])
async def test_an_answer_without_a_question_answers_nothing(more: bytes) -> None:
    server = Server(_ANSWER + more, _ANSWER)
    async with server.asked() as connections:
        assert await _whole(connections) == b"{}"
        assert await _whole(connections) == b"{}"
    assert server.connections == 2


async def test_a_kept_connection_that_speaks_unasked_is_used_no_more() -> None:
    server = Server(_ANSWER, _ANSWER)
    async with server.asked() as connections:
        assert await _whole(connections) == b"{}"
        (kept,) = connections._kept
        server.writers[0].write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother")
        async with asyncio.timeout(5.0):
            while kept.lost is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert await _whole(connections) == b"{}"
    assert server.connections == 2


async def test_a_connection_that_was_left_in_an_answer_is_closed() -> None:
    server = Server(_ANSWER[:-1], _ANSWER)
    async with server.asked() as connections:
        async with connections.asked("/path", None) as answer:
            assert answer.status == 200
            assert answer.headers["content-type"] == "application/json"
        assert await _whole(connections) == b"{}"
    assert server.connections == 2


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"SSH-2.0\r\n\r\n", _ANSWER[:-1]]
)
async def test_a_server_that_breaks_off_is_silent_or_speaks_otherwise_is_broken(answer: bytes) -> None:
    async with Server(answer).asked(silence_seconds=0.2) as connections:
        with pytest.raises(ConnectionBroken):
            await _whole(connections)


async def test_a_server_that_is_not_there_is_broken() -> None:
    connections = Connections("http://127.0.0.1:1", {}, connect_seconds=5.0, silence_seconds=5.0)
    with pytest.raises(ConnectionBroken):
        await _whole(connections)


async def test_a_long_answer_comes_whole_though_it_comes_faster_than_it_is_read() -> None:
    size = 4 << 20
    server = Server(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
    async with server.asked() as connections:
        async with connections.asked("/path", None) as answer:
            await asyncio.sleep(0.05)
            pieces = list[bytes]()
            await answer.read(pieces.append)
        assert sum(map(len, pieces)) == size
