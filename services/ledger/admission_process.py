"""A process that checks receipts of large requests and of many simultaneous callers, which is half of a receipt's cost.
The other half, which has to be done in one place, then has its interpreter for itself.

    question = length ‖ MessagePack: the keys that are trusted for receipts, and an AppendEntriesRequest
    answer   = length ‖ MessagePack: the result for each entry, or null

Four zero bytes precede the first answer, when the process is ready. It keeps no state between two questions and answers
them in order. It accepts receipts alone, and returns nothing about other entries: the caller checks those again, and
finds their kind or their fault.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import signal
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from kolm.ledger.v1 import ledger_pb2
from ledger.documents.receipt import Receipt
from ledger.encoding.document import packing
from ledger.errors import LedgerError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.key_scope import KeyScope
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.admission import Admitted, admit
from services.client.ledger import log_wire
from services.runtime.errors import Unavailable

_log = logging.getLogger(__name__)

_READY = bytes(4)
_PIPE_BYTES = 1 << 20
"""Bytes that may wait in a pipe, so that the next question can be sent before an answer."""
_MOST_SHARED, _MOST_SHARED_BYTES = 128, _PIPE_BYTES
"""The most entries of a question, and their bytes; a larger request is a question of its own. Twice as many bring no
more receipts a second, and each waits longer.
"""
_MOST_ASKED = 2
"""Questions that the process has at the same time: while it answers one, the next one is in its pipe."""


class _Key(msgspec.Struct, array_like=True, frozen=True):
    raw: bytes
    scope: dict[str, list[str]]


class _Question(msgspec.Struct, array_like=True, frozen=True):
    keys: tuple[_Key, ...]
    request: bytes


class _Found(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A valid receipt. `envelope` is None if the sent envelope is canonical."""

    envelope: bytes | None
    digest: bytes
    receipt: Receipt
    content: bytes | None
    signers: tuple[str, ...]

    def admitted(self, sent: bytes, trusted: TrustedKeys) -> Admitted:
        return Admitted(self.envelope or sent, self.digest, self.receipt, self.content, trusted, self.signers)


_question_bytes, _read_question = packing(_Question)
_answer_bytes, _read_answer = packing(list[_Found | None])


class AdmissionProcess:
    """The process, started by the first question, on one event loop, with which it ends. It is not used until it is
    `there`, because it takes half a second to start. If the process dies, its questions fail; the next question starts
    another process, and waits for it.
    """

    def __init__(self) -> None:
        self.there = asyncio.Event()
        self._asked: deque[asyncio.Future[bytes]] = deque()
        self._running: asyncio.Task[asyncio.subprocess.Process] | None = None

    async def admitted(
        self, requests: Sequence[ledger_pb2.AppendEntriesRequest], trusted: TrustedKeys
    ) -> list[Admitted | None]:
        """The entries of some requests that are receipts and valid by these keys; None for the others. Raises
        Unavailable if the process has died.
        """
        entries = [entry for request in requests for entry in request.entries]
        if self._running is None:
            self._running = asyncio.ensure_future(self._start())
            self._running.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not self.there.is_set():
            return [None] * len(entries)
        keys = tuple(_Key(key.raw, key.scope.to_document()) for key in trusted.keys("receipts"))
        try:
            joined = b"".join(request.SerializeToString() for request in requests)  # a message of all their entries
            question = _question_bytes(_Question(keys, joined))
            answer = await self._ask(question, self._running)
        except OSError:
            raise Unavailable("the process that checks receipts has ended; send it again") from None
        return [
            found and found.admitted(entry.envelope, trusted)
            for found, entry in zip(_read_answer(answer), entries, strict=True)
        ]

    async def _ask(self, question: bytes, running: asyncio.Task[asyncio.subprocess.Process]) -> bytes:
        process = await asyncio.shield(running)
        if self._running is not running:  # the process has ended
            raise ConnectionResetError
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        assert process.stdin is not None
        process.stdin.write(len(question).to_bytes(4, "little") + question)
        self._asked.append(answer)
        return await answer

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, cwd=Path(__file__).parents[2], limit=_PIPE_BYTES,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._ended(str(error))
            raise
        self._reading = asyncio.ensure_future(self._read(process))
        return process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            await process.stdout.readexactly(len(_READY))
            self.there.set()
            while True:
                size = int.from_bytes(await process.stdout.readexactly(4), "little")
                answer = await process.stdout.readexactly(size)
                asked = self._asked.popleft()
                if not asked.done():  # otherwise its caller has gone
                    asked.set_result(answer)
        except asyncio.IncompleteReadError:
            self._ended(f"exit status {await process.wait()}")
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _ended(self, reason: str) -> None:
        _log.error("lost the process that checks receipts: %s", reason)
        self._running = None
        while self._asked:
            asked = self._asked.popleft()
            if not asked.done():
                asked.set_exception(ConnectionResetError())


class SharedQuestions:
    """Questions about the requests of many calls and streams together: a question collects the requests that arrive
    while earlier questions are answered, so its size grows with the load. On the event loop of the process.
    """

    def __init__(self, process: AdmissionProcess) -> None:
        self._process = process
        self._asking = asyncio.Semaphore(_MOST_ASKED)
        self._next: _Shared | None = None

    async def admitted(self, request: ledger_pb2.AppendEntriesRequest, trusted: TrustedKeys) -> list[Admitted | None]:
        """The process's answer about the entries of one request. Raises Unavailable."""
        count, size = len(request.entries), request.ByteSize()
        shared = self._next
        if shared is None or shared.trusted is not trusted or not shared.has_room(count, size):
            shared = self._next = _Shared(trusted)
            shared.found = asyncio.ensure_future(self._ask(shared))
            shared.found.add_done_callback(lambda done: done.cancelled() or done.exception())  # all may have gone
        place = shared.add(request, count, size)
        del request  # the question has it
        return (await asyncio.shield(shared.found))[place : place + count]

    async def _ask(self, shared: _Shared) -> list[Admitted | None]:
        async with self._asking:
            if self._next is shared:
                self._next = None
            return await self._process.admitted(shared.requests, shared.trusted)


class _Shared:
    """A question that grows until it is sent."""

    found: asyncio.Task[list[Admitted | None]]

    def __init__(self, trusted: TrustedKeys) -> None:
        self.requests: list[ledger_pb2.AppendEntriesRequest] = []
        self.trusted = trusted
        self._entries = 0
        self._bytes = 0

    def has_room(self, entries: int, size: int) -> bool:
        return self._entries + entries <= _MOST_SHARED and self._bytes + size <= _MOST_SHARED_BYTES

    def add(self, request: ledger_pb2.AppendEntriesRequest, entries: int, size: int) -> int:
        """The place of the request's first entry in the answer."""
        place = self._entries
        self.requests.append(request)
        self._entries += entries
        self._bytes += size
        return place


def answer_all(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer every question until the end of the pipe."""
    answers.write(_READY)
    answers.flush()
    while size := questions.read(4):
        question = questions.read(int.from_bytes(size, "little"))
        answer = _answer_bytes(_checked(_read_question(question)))
        answers.write(len(answer).to_bytes(4, "little") + answer)
        answers.flush()


def _checked(question: _Question) -> list[_Found | None]:
    keys = tuple(PublicKey(key.raw, KeyScope.of(**key.scope)) for key in question.keys)
    trusted = TrustedKeys({"receipts": keys})
    return [_found(entry, trusted) for entry in ledger_pb2.AppendEntriesRequest.FromString(question.request).entries]


def _found(entry: ledger_pb2.NewEntry, trusted: TrustedKeys) -> _Found | None:
    try:
        admitted = admitted_entry(entry, trusted)
    except LedgerError:
        return None
    if not isinstance(admitted.document, Receipt):
        return None
    canonical = None if admitted.envelope == entry.envelope else admitted.envelope
    return _Found(canonical, admitted.envelope_digest, admitted.document, admitted.content, admitted.signers)


def admitted_entry(entry: ledger_pb2.NewEntry | ledger_pb2.AppendEntryRequest, trusted: TrustedKeys) -> Admitted:
    """An entry of a request, checked by these keys. Raises FormatError, SignatureError.

    Content is read after the receipt's signature is verified: a million ids take ten times their bytes.
    """
    admitted = admit(entry.envelope, None, trusted)
    return admitted.with_content(log_wire.content(entry.content)) if entry.HasField("content") else admitted


def main() -> None:
    """Answer until the service closes the pipe, in spite of signals to the process group."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError, AttributeError):  # Linux
        for pipe in (sys.stdin, sys.stdout):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    answer_all(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
