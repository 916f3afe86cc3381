"""A receipt that a caller was shown is the receipt of its id in the log, whatever fails or is killed."""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ledger.durable_file
from kolm.ledger.v1 import ledger_pb2
from services.generation.ledger_link import LedgerRefused, LedgerUnreachable
from services.generation.receipts import journal, outbox
from services.generation.receipts.issuer import SignedReceipt
from services.generation.receipts.journal import Journal
from services.generation.receipts.outbox import Outbox, ReceiptUnkept
from tests.examples import examples
from tests.integration.generation.deployment import until

ANSWER, NO_OUTPUT = "answer", "no output"


class FailingDisk:
    """`os` for the modules that write: its calls fail by `fails`, one after another, then by `end`. A write
    that fails has written half.
    """

    WRITES = ("fsync", "ftruncate", "open", "rename", "link", "replace", "fchmod")

    def __init__(self, fails: Sequence[bool], end: bool) -> None:
        self._fails, self._end = iter(fails), end

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._failing(real) if name in self.WRITES else real

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self._fail()
            return real(*given, **named)

        return call

    def pwrite(self, file: int, data: bytes, at: int) -> int:
        try:
            self._fail()
        except OSError:
            os.pwrite(file, data[: len(data) // 2], at)
            raise
        return os.pwrite(file, data, at)

    def _fail(self) -> None:
        if next(self._fails, self._end):
            raise OSError(28, "No space left on device")


class Log:
    """The ledger: one document under an id. It has `moods`, one a call, and then `end`: it takes, is away, or takes and
    is not heard.
    """

    def __init__(self) -> None:
        self.documents: dict[str, str] = {}
        self.feel((), "takes")

    def feel(self, moods: Sequence[str], end: str) -> None:
        self._moods, self._end = iter(moods), end

    async def append_all(
        self, requests: Sequence[ledger_pb2.AppendEntryRequest]
    ) -> list[ledger_pb2.AppendEntryResponse | LedgerRefused]:
        mood = next(self._moods, self._end)
        if mood == "away":
            raise LedgerUnreachable("away")
        answers = [self._append(*request.envelope.decode().split(":")) for request in requests]
        if mood == "unheard":
            raise LedgerUnreachable("the answer is lost")
        return answers

    def _append(self, name: str, document: str) -> ledger_pb2.AppendEntryResponse | LedgerRefused:
        if self.documents.setdefault(name, document) != document:
            return LedgerRefused("CONFLICT", f"{name} is another document")
        return ledger_pb2.AppendEntryResponse(index=[*self.documents].index(name))


def append(name: str, document: str) -> ledger_pb2.AppendEntryRequest:
    request = ledger_pb2.AppendEntryRequest(envelope=f"{name}:{document}".encode())
    if document == ANSWER:
        request.content.output_token_ids.append(7)
    return request


class Promised(SignedReceipt):
    """The receipt without output of an id."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "receipt_id", name)

    @property
    def append(self) -> ledger_pb2.AppendEntryRequest:
        return append(self.receipt_id, NO_OUTPUT)


async def until_killed(
    folder: Path, log: Log, batches: Sequence[int], life: int, promised: set[str], answered: set[str]
) -> None:
    """Requests in batches that run together, until the process is killed: adds those with a promise, and those whose
    callers have a receipt. Raises OSError if it does not start.
    """
    kept = Journal(folder)
    box = Outbox(kept, log.append_all, 1000, 0.001)
    await box.recover()
    sending = asyncio.ensure_future(box.drain())

    async def request(name: str) -> None:
        if not box.reserve(1):
            return
        try:
            await box.promise([Promised(name)])
        except OSError:
            return
        finally:
            box.release(1)
        promised.add(name)
        with suppress(ReceiptUnkept):
            await box.put(name, append(name, ANSWER), 0.01)
            answered.add(name)

    for number, size in enumerate(batches):
        await asyncio.gather(*(request(f"{life}.{number}.{each}") for each in range(size)))
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    kept._thread.shutdown()  # which dies with its process


async def after_restart(folder: Path, log: Log) -> None:
    box = Outbox(Journal(folder), log.append_all, 1000, 0.001)
    await box.recover()
    sending = asyncio.ensure_future(box.drain())
    while box.pending - box.refused:
        await box.attempted()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize("error", [LedgerRefused("MESSAGE_TOO_LARGE", "more than 4"), LedgerUnreachable("slow")])
async def test_a_message_that_the_ledger_does_not_take_is_divided(tmp_path: Path, error: Exception) -> None:
    log, large = Log(), isinstance(error, LedgerRefused)

    async def append_all(requests: Sequence[ledger_pb2.AppendEntryRequest]) -> Any:
        if len(requests) > 4 or (large and any(b"9:" in each.envelope for each in requests)):
            raise error
        return await log.append_all(requests)

    box = Outbox(Journal(tmp_path / "outbox"), append_all, 1000, 0.001)
    put = [asyncio.ensure_future(box.put(f"{each}", append(f"{each}", ANSWER), 10.0)) for each in range(20)]

    async def queued() -> bool:
        return box.pending == 20

    await until(queued)
    sending = asyncio.ensure_future(box.drain())
    async with asyncio.timeout(10):
        while box.pending - box.refused:
            await box.attempted()
    await asyncio.gather(*put)
    sending.cancel()
    refused = {"9", "19"} if large else set()
    assert (log.documents.keys(), box.refused) == ({str(each) for each in range(20)} - refused, len(refused))


MOODS = st.sampled_from(["takes", "away", "unheard"])
LIVES = st.lists(
    st.tuples(
        st.lists(st.booleans(), max_size=40),
        st.booleans(),
        st.lists(MOODS, max_size=20),
        MOODS,
        st.lists(st.integers(1, 4), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=3,
)
"""For each process until it is killed: which calls of the disk fail, the ledger's moods, batches of requests."""


@settings(max_examples=examples(300), deadline=None)
@given(lives=LIVES, most_settled=st.sampled_from([50, 4 << 20]), seconds=st.sampled_from([0.0, 5.0]))
def test_a_receipt_that_a_caller_has_is_that_of_its_id_in_the_log(
    tmp_path_factory: pytest.TempPathFactory,
    lives: list[tuple[list[bool], bool, list[str], str, list[int]]],
    most_settled: int,
    seconds: float,
) -> None:
    folder, log = tmp_path_factory.mktemp("killed") / "outbox", Log()
    promised, answered = set[str](), set[str]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(outbox, "_FIRST_PAUSE", 0.001)
        patched.setattr(journal, "_MOST_SETTLED", most_settled)  # a small number rewrites the file all the time
        patched.setattr(journal, "_SETTLED_SECONDS", seconds)
        for life, (fails, broken, moods, last, batches) in enumerate(lives):
            disk = FailingDisk(fails, broken)
            patched.setattr(journal, "os", disk)
            patched.setattr(ledger.durable_file, "os", disk)
            log.feel(moods, last)
            with suppress(OSError):  # a start that fails is tried again, as a life of its own
                asyncio.run(until_killed(folder, log, batches, life, promised, answered))
    log.feel((), "takes")
    asyncio.run(after_restart(folder, log))
    assert promised <= log.documents.keys()
    assert {name for name in answered if log.documents[name] != ANSWER} == set()
