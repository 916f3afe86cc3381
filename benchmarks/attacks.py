"""`python -m benchmarks.attacks`: memory of a ledger before, under and after each attack; JSON with --json FILE.

An attack is a coroutine that goes on until it is cancelled, against the ledger at an address, in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection_pb2

from benchmarks.machine import resident
from kolm.ledger.v1 import documents_pb2, ledger_pb2
from services.client import LedgerClient
from services.client.errors import KolmError
from services.runtime.credentials import Credential, new_token, token_digest, write_principals

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


def _question(size: int) -> bytes:
    """A question to the reflection service, which takes no role."""
    return bytes(reflection_pb2.ServerReflectionRequest(file_by_filename="x" * size).SerializeToString())


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


Send = Callable[[Any, bytes], Coroutine[None, None, None]]
"""Sends one message over a channel, again and again for ever."""


def _stream(method: str) -> Send:
    """One stream after the other of the message, its answers unread."""

    async def send(channel: Any, message: bytes) -> None:
        async def endless() -> AsyncIterator[bytes]:
            for _ in itertools.count():
                yield message

        while True:
            with suppress(grpc.RpcError):
                call = channel.stream_stream(method)(endless())
                await call.wait_for_connection()
                await call.code()
            await asyncio.sleep(0.01)

    return send


async def _call(channel: Any, message: bytes) -> None:
    while True:
        with suppress(grpc.RpcError):
            await channel.unary_unary(f"{_SERVICE}/AppendEntry")(message)
        await asyncio.sleep(0.01)


def sixty(send: Send, message: Callable[[], bytes], connections: int = 1) -> Attack:
    """Sixty of them at a time, over so many connections."""

    async def attack(address: str) -> None:
        sent = message()
        channels = [grpc.aio.insecure_channel(address, options=_OPTIONS) for _ in range(connections)]
        await asyncio.gather(*(send(channels[n % connections], sent) for n in range(_STREAMS)))

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
        await asyncio.gather(*(_call(channel, sent) for _ in range(8)))

    return attack


ATTACKS: dict[str, Attack] = {
    "60 streams of junk, 16 MiB a message": sixty(_stream(_APPEND_ENTRIES), lambda: _junk(_LARGE)),
    "60 streams of junk over 60 connections": sixty(_stream(_APPEND_ENTRIES), lambda: _junk(_LARGE), 60),
    "60 streams of junk, 4 MiB a message": sixty(_stream(_APPEND_ENTRIES), lambda: _junk(_TAKEN), 60),
    "60 streams of a field that nobody knows": sixty(_stream(_APPEND_ENTRIES), lambda: _unknown_field(_TAKEN), 60),
    "60 streams of one huge envelope": sixty(_stream(_APPEND_ENTRIES), lambda: _entries(_TAKEN), 60),
    "60 streams of 2 million empty entries": sixty(_stream(_APPEND_ENTRIES), lambda: _many_entries(_TAKEN), 60),
    "60 streams of 4 million token ids": sixty(_stream(_APPEND_ENTRIES), lambda: _tokens(_TAKEN), 60),
    "60 calls of junk, 16 MiB each": sixty(_call, lambda: _unknown_field(_LARGE), 60),
    "60 calls of a huge envelope": sixty(_call, lambda: _entry(_TAKEN), 60),
    "60 calls that stop before their end": stalled(60),
    "compressed messages, 256 MiB each": bomb(256 * 2**20),
    "60 streams of reflection, 4 MiB a question": sixty(_stream(_REFLECTION), lambda: _question(_TAKEN - 64), 60),
    "5,000 watches on one connection": watches(5000),
    "2,000 connections that say nothing": idle_connections(2000),
    "60 exports, unread": exports(60),
}


def _run(name: str, address: str) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(ATTACKS[name](address))


HONEST = new_token()
"""The token of a caller who is not the attacker."""

_SECONDS = 6.0
_START_SECONDS = 1.5
_CALM_SECONDS = 3.0


def main() -> None:
    if sys.argv[1:2] == ["attack"]:
        return _run(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="how long each attack goes on")
    parser.add_argument("--only", help="attacks whose name holds this")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("flags", nargs="*", help="flags of the ledger")
    arguments = parser.parse_args()
    figures = []
    for name in ATTACKS:
        if arguments.only is None or arguments.only in name:
            figures.append({"attack": name} | measured(name, arguments.seconds, arguments.flags))
            print(
                "{attack:45} {before:6.0f} {most:6.0f} {after:6.0f} MB  answers {answers}; {neighbour}".format(
                    **figures[-1]
                )
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def measured(name: str, seconds: float, flags: list[str]) -> dict[str, Any]:
    """Resident memory in MB before the attack, the most under it, and some seconds after it; and when honest callers
    were answered meanwhile, one with a token and one who shares the attacker's identity.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        ledger(Path(folder), flags) as (process, address),
        closing(LedgerClient.connect(address, wait=30, timeout=20, token=HONEST)) as honest,
        closing(LedgerClient.connect(address, wait=30, timeout=20)) as neighbour,
        ThreadPoolExecutor() as threads,
    ):
        for caller in (honest, neighbour):
            caller.checkpoint()
        before = resident(process.pid) / 1e6
        with subprocess.Popen([sys.executable, "-m", "benchmarks.attacks", "attack", name, address]) as attacker:
            asking = [
                threads.submit(_answers, caller, process, seconds + _START_SECONDS) for caller in (honest, neighbour)
            ]
            answers, neighbours = (asked.result() for asked in asking)
            most = resident(process.pid, "VmHWM") / 1e6
            attacker.kill()
        time.sleep(_CALM_SECONDS)
        after = resident(process.pid) / 1e6
    return {"before": before, "most": most, "after": after, "answers": answers, "neighbour": neighbours}


def _answers(honest: LedgerClient, process: subprocess.Popen[bytes], seconds: float) -> str:
    """Asks all the time; the slowest answer, or what came in its place."""
    end, slowest = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        started = time.monotonic()
        try:
            honest.checkpoint()
        except KolmError as error:
            return type(error).__name__ if process.poll() is None else "none: it died"
        slowest = max(slowest, time.monotonic() - started)
        time.sleep(0.05)
    return f"within {slowest:.2f} s"


@contextmanager
def ledger(folder: Path, flags: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Whoever is on this machine may append and read: without a role an attacker's request would not even be read.
    So may HONEST, under an identity of its own.
    """
    local = Credential(name="here", tenant=None, roles=("append", "read"), anybody=True, created_at=datetime.now(UTC))
    honest = local.model_copy(update={"name": "honest", "anybody": False, "token_sha256": token_digest(HONEST)})
    write_principals(folder / "principals.json", [local, honest])
    command = [sys.executable, "-m", "services.ledger", "--data-dir", str(folder), "--listen", "127.0.0.1:0"]
    ready = folder / "address"
    command += ["--principals", str(folder / "principals.json"), "--ready-file", str(ready), *flags]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            while not ready.exists():
                if process.poll() is not None:
                    raise RuntimeError((folder / "log").read_text())
                time.sleep(0.05)
            yield process, ready.read_text().strip()
        finally:
            process.kill()


if __name__ == "__main__":
    main()
