"""Receipts that are checked in a separate process, also when it ends."""

import asyncio
import os
import signal
from collections.abc import Sequence

import pytest

from kolm.ledger.v1 import ledger_pb2
from ledger.documents.content import Content
from ledger.documents.receipt import Sampling
from ledger.encoding.document import Seed
from ledger.keys.key_scope import KeyScope
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.admission import Admitted, admit
from services.client.ledger.log_wire import content_message
from services.ledger.admission_process import AdmissionProcess, SharedQuestions
from services.runtime.errors import Unavailable
from tests.unit.ledger.builders import (
    KEYS,
    STRANGER,
    TRUSTED,
    content,
    foreign_receipt,
    key_entry,
    receipt,
    signed,
    signed_receipt,
)


def request(*entries: tuple[bytes, Content | None]) -> ledger_pb2.AppendEntriesRequest:
    return ledger_pb2.AppendEntriesRequest(
        entries=[
            ledger_pb2.NewEntry(envelope=envelope, content=None if kept is None else content_message(kept))
            for envelope, kept in entries
        ]
    )


HOLD: Sequence[tuple[bytes, Content | None]] = [
    (signed_receipt(0), content(0)),
    (signed_receipt(1), None),
    (signed_receipt(2) + b"\n", content(2)),  # in another layout than the canonical one
    (signed(receipt(3, tenant="söner\0\U0001f600", nonce='\\"')), None),
    (signed(receipt(4, sampling=Sampling(temperature=1e-7, seed=Seed(2**64 - 1), stop=("\u2028",)))), None),
    (signed(foreign_receipt(5)), None),
]


async def started() -> AdmissionProcess:
    process = AdmissionProcess()
    await process.admitted([request()], TRUSTED)
    await process.there.wait()
    return process


async def test_no_caller_waits_for_its_start() -> None:
    process = AdmissionProcess()
    for _ in range(2):
        assert await process.admitted([request(*HOLD)], TRUSTED) == [None] * len(HOLD)
        assert not process.there.is_set()
    await process.there.wait()
    assert None not in await process.admitted([request(*HOLD)], TRUSTED)


async def test_a_process_that_cannot_start_fails_no_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    process = AdmissionProcess()
    for _ in range(2):
        assert await process.admitted([request(HOLD[0])], TRUSTED) == [None]
        assert process._running is not None
        await asyncio.wait([process._running])
        assert process._running is None


async def test_receipts_that_hold_come_back_as_if_they_had_been_checked_here() -> None:
    found = await (await started()).admitted([request(*HOLD)], TRUSTED)
    assert found == [admit(envelope, kept, TRUSTED) for envelope, kept in HOLD]


async def test_nothing_is_said_of_all_else() -> None:
    refused: list[tuple[bytes, Content | None]] = [
        (b"", None),
        (b"junk", None),
        (signed_receipt(0), content(1)),
        (signed(key_entry("receipts")), None),
        (signed_receipt(0).replace(b"a", b"b", 1), None),
    ]
    process = await started()
    found = await process.admitted([request(*refused), request(HOLD[0])], TRUSTED)
    assert found == [None] * len(refused) + [admit(*HOLD[0], TRUSTED)]


async def test_the_keys_are_those_of_the_question() -> None:
    process, asked = await started(), request(HOLD[0])
    for keys, holds in (
        (TRUSTED, True),
        (TrustedKeys.of(STRANGER), False),
        (TrustedKeys({"receipts": (KEYS["receipts"].public.scoped(KeyScope(tenant=("acme",))),)}), True),
        (TrustedKeys({"receipts": (KEYS["receipts"].public.scoped(KeyScope(tenant=("other",))),)}), False),
        (TRUSTED, True),
    ):
        assert [each is not None for each in await process.admitted([asked], keys)] == [holds]


async def test_questions_that_overlap_are_answered_each_by_its_own() -> None:
    process = await started()
    asked = [[(signed_receipt(number), content(number))] * (number % 5 + 1) for number in range(40)]
    found = await asyncio.gather(*(process.admitted([request(*each)], TRUSTED) for each in asked))
    assert found == [[admit(*entry, TRUSTED) for entry in each] for each in asked]


async def test_a_process_that_ends_fails_its_questions_and_the_next_one_starts_another() -> None:
    process = await started()
    large = request(*[HOLD[0]] * 1000)
    await process.admitted([request(HOLD[0])], TRUSTED)
    for _ in range(2):
        assert process._running is not None
        pid = (await process._running).pid
        asked = [asyncio.ensure_future(process.admitted([large], TRUSTED)) for _ in range(3)]
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        for each in asked:
            with pytest.raises(Unavailable):
                await each
        assert await process.admitted([request(HOLD[0])], TRUSTED) == [admit(*HOLD[0], TRUSTED)]


async def test_a_caller_that_goes_leaves_the_others_their_answers() -> None:
    process = await started()
    first = asyncio.ensure_future(process.admitted([request(HOLD[0])], TRUSTED))
    second = asyncio.ensure_future(process.admitted([request(HOLD[1])], TRUSTED))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == [admit(*HOLD[1], TRUSTED)]
    assert await process.admitted([request(HOLD[0])], TRUSTED) == [admit(*HOLD[0], TRUSTED)]


class Counted(AdmissionProcess):
    """Keeps the size of each question."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    async def admitted(
        self, requests: Sequence[ledger_pb2.AppendEntriesRequest], trusted: TrustedKeys
    ) -> list[Admitted | None]:
        self.sizes.append(sum(len(request.entries) for request in requests))
        return await super().admitted(requests, trusted)


async def counted() -> tuple[Counted, SharedQuestions]:
    process = Counted()
    shared = SharedQuestions(process)
    assert await shared.admitted(request(HOLD[0]), TRUSTED) == [None]
    await process.there.wait()
    process.sizes.clear()
    return process, shared


async def test_requests_that_come_while_two_questions_are_answered_share_the_next_one() -> None:
    process, shared = await counted()
    first = [asyncio.ensure_future(shared.admitted(request(HOLD[0]), TRUSTED))]
    for _ in range(3):
        await asyncio.sleep(0)
    first.append(asyncio.ensure_future(shared.admitted(request(HOLD[0]), TRUSTED)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert process.sizes == [1, 1]
    sent = [[(signed_receipt(number), content(number))] for number in range(200)]
    sent += [[*each, (b"junk", None)] for each in sent[:50]]
    found = await asyncio.gather(*(shared.admitted(request(*each), TRUSTED) for each in sent))
    assert found == [[None if kept is None else admit(data, kept, TRUSTED) for data, kept in each] for each in sent]
    assert await asyncio.gather(*first) == [[admit(*HOLD[0], TRUSTED)]] * 2
    assert process.sizes == [1, 1, 128, 128, 44]


async def test_a_question_grows_to_a_number_of_bytes_and_a_larger_request_is_one_by_itself() -> None:
    process, shared = await counted()
    long = [(signed_receipt(0) + b" " * 500_000, None)]
    sent = [long, long, long, [HOLD[0]] * 200, [HOLD[0]] * 2]
    found = await asyncio.gather(*(shared.admitted(request(*each), TRUSTED) for each in sent))
    assert process.sizes == [2, 1, 200, 2]
    assert [len(each) for each in found] == [1, 1, 1, 200, 2]


async def test_callers_with_other_keys_do_not_share_a_question() -> None:
    shared = SharedQuestions(await started())
    others = TrustedKeys.of(STRANGER)
    asked = (shared.admitted(request(HOLD[0]), keys) for keys in (TRUSTED, others, TRUSTED))
    assert [each and each.trusted for (each,) in await asyncio.gather(*asked)] == [TRUSTED, None, TRUSTED]


async def test_a_caller_that_shared_a_question_and_goes_leaves_the_others_their_answers() -> None:
    shared = SharedQuestions(await started())
    first, second = (asyncio.ensure_future(shared.admitted(request(each), TRUSTED)) for each in HOLD[:2])
    await asyncio.sleep(0)
    first.cancel()
    assert await second == [admit(*HOLD[1], TRUSTED)]


async def test_all_who_share_a_question_are_told_when_the_process_ends() -> None:
    process = await started()
    shared = SharedQuestions(process)
    asked = [asyncio.ensure_future(shared.admitted(request(HOLD[0]), TRUSTED)) for _ in range(20)]
    await asyncio.sleep(0)
    assert process._running is not None
    os.kill((await process._running).pid, signal.SIGKILL)
    for each in asked:
        with pytest.raises(Unavailable):
            await each
    assert await shared.admitted(request(HOLD[0]), TRUSTED) == [admit(*HOLD[0], TRUSTED)]
