"""AppendEntry and AppendEntries over the wire: durable, proven, in order, and strict about what they take."""

import asyncio
import json
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kolm.ledger.v1 import ledger_pb2
from kolm.ledger.v1.ledger_pb2_grpc import LedgerServiceStub
from ledger.documents.content import Content
from ledger.documents.signed_document import sign_document
from ledger.encoding.text_forms import timestamp
from ledger.keys.ed25519 import SigningKey
from ledger.keys.key_scope import KeyScope
from ledger.log.admission import Admitted
from ledger.tree.checkpoint import open_checkpoint
from ledger.tree.entry import MAX_ENVELOPE_BYTES
from ledger.tree.merkle import leaf_hash, verify_inclusion
from services.client.errors import (
    AlreadyExists,
    InvalidArgument,
    KolmError,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    decode_status,
)
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.log import Appended
from services.client.ledger.log_wire import content_message
from services.ledger.admission_process import AdmissionProcess, SharedQuestions
from services.ledger.settings import LedgerSettings
from tests.append_stream import append_many
from tests.fuzzing import flood
from tests.integration.ledger_service.conftest import Serve
from tests.serving import Served
from tests.unit.ledger.builders import ORIGIN, STRANGER, content, erasure, receipt, signed, signed_receipt, verdict


def test_an_append_is_proven_by_a_checkpoint_that_the_log_signed(
    ledger: LedgerClient, settings: LedgerSettings
) -> None:
    for number in range(5):
        appended = ledger.append(signed_receipt(number))
        assert appended.index == number
    log_key = SigningKey.load(settings.log_key, "log").public
    checkpoint = open_checkpoint(appended.checkpoint, [log_key], ORIGIN)
    entry = ledger.entry(4)
    proof = appended.inclusion_proof
    verify_inclusion(leaf_hash(entry.entry), 4, proof.tree_size, proof.hashes, checkpoint.root)
    assert entry.envelope.to_bytes() == signed_receipt(4)


def test_a_key_added_to_the_trusted_folder_of_a_running_ledger_signs_nothing(
    serve: Serve, settings: LedgerSettings, caplog: pytest.LogCaptureFixture
) -> None:
    envelope = sign_document(receipt(0), STRANGER).to_bytes()
    with serve() as served, LedgerClient.connect(served.address, wait=60) as ledger:
        STRANGER.publish(settings.trusted_directory)
        for _ in range(3):
            with pytest.raises(InvalidArgument) as caught:
                ledger.append(envelope)
            assert caught.value.fields == ("envelope",)
        assert ledger.append(signed_receipt(1)).index == 0
    refusals = [line for line in caplog.messages if STRANGER.key_id in line and "refused the key" in line]
    assert len(refusals) == 1
    with serve() as served, LedgerClient.connect(served.address, wait=60) as ledger:  # a person has started it again
        assert ledger.append(envelope).index == 1


def test_a_key_that_is_trusted_for_one_tenant_signs_no_other_s_receipt(serve: Serve, settings: LedgerSettings) -> None:
    stolen = STRANGER.public.scoped(KeyScope.of(tenant=["globex"]))
    settings.trusted_directory.mkdir(parents=True, exist_ok=True)
    (settings.trusted_directory / "receipts-stolen.pub").write_bytes(stolen.to_pem())
    with serve() as served, LedgerClient.connect(served.address, wait=60) as ledger:
        with pytest.raises(InvalidArgument) as caught:
            ledger.append(sign_document(receipt(0), STRANGER).to_bytes())
        assert (caught.value.fields, caught.value.reason) == (("envelope",), "UNTRUSTED_SIGNATURE")
        assert ledger.append(sign_document(receipt(0, tenant="globex"), STRANGER).to_bytes()).index == 0


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    junk=st.one_of(
        st.binary(max_size=400),
        st.builds(lambda cut, junk: signed_receipt(0)[:cut] + junk, st.integers(0, 900), st.binary(max_size=8)),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_junk_as_an_envelope_is_invalid_and_never_internal(ledger: LedgerClient, junk: bytes) -> None:
    with pytest.raises(InvalidArgument) as caught:
        ledger.append(junk)
    assert caught.value.fields == ("envelope",)


def test_random_messages_are_answered_or_refused(served: Served, ledger: LedgerClient) -> None:
    index = ledger.append(signed_receipt(0)).index
    size = ledger.checkpoint().tree_size
    flood(served.address, ledger_pb2.DESCRIPTOR.services_by_name["LedgerService"])
    assert ledger.checkpoint().tree_size == size
    assert ledger.append(signed_receipt(0)).index == index


Entry = tuple[bytes, Content | None]


def receipts(*numbers: int) -> Iterator[Entry]:
    return ((signed_receipt(number), None) for number in numbers)


def indexes(answers: list[Appended | KolmError]) -> list[int | str]:
    return [answer.index if isinstance(answer, Appended) else type(answer).__name__ for answer in answers]


def test_every_entry_of_a_stream_is_answered_in_order(ledger: LedgerClient) -> None:
    answers = list(append_many(ledger, ((signed_receipt(number), content(number)) for number in range(600))))
    assert indexes(answers) == list(range(600))
    assert ledger.checkpoint().tree_size == 600
    assert list(append_many(ledger, [])) == []


def test_entries_that_came_before_keep_their_index(ledger: LedgerClient) -> None:
    ledger.append(signed_receipt(5))
    assert indexes(list(append_many(ledger, receipts(4, 5, 4, 6)))) == [1, 0, 1, 2]


def test_bad_entries_are_refused_one_by_one_and_the_stream_goes_on(ledger: LedgerClient) -> None:
    entries: list[Entry] = [
        (signed_receipt(0), content(0)), (b"junk", None), (signed_receipt(1), content(2)),
        (signed_receipt(0, tenant="another"), None), (b'{"payload":"' + b"A" * MAX_ENVELOPE_BYTES + b'"}', None),
        (signed(erasure(0, 0)), None), (signed_receipt(2), None),
    ]  # fmt: skip
    with append_many(ledger, entries) as stream:
        answers = list(stream)
    refused = ["InvalidArgument", "InvalidArgument", "AlreadyExists", "InvalidArgument", "PermissionDenied"]
    assert indexes(answers) == [0, *refused, 1]
    junk, opening, conflict, large, forbidden = answers[1:6]
    assert isinstance(junk, InvalidArgument)
    assert junk.fields == ("envelope",)
    assert isinstance(opening, InvalidArgument)
    assert opening.fields == ("content.prompt_token_ids",)
    assert isinstance(conflict, AlreadyExists)
    assert conflict.reason == "CONFLICT"
    assert isinstance(large, InvalidArgument)
    assert f"at most {MAX_ENVELOPE_BYTES}" in large.message
    assert isinstance(forbidden, PermissionDenied)
    assert "the role operate" in forbidden.message
    assert forbidden.request_id


def test_a_document_of_a_time_to_come_is_refused_with_the_reason_and_the_member(served: Served) -> None:
    tomorrow = timestamp(datetime.now(UTC) + timedelta(days=1))
    ahead = signed_receipt(1, issued_at=tomorrow)
    with LedgerClient.connect(served.address, wait=60) as ledger:
        for envelope, member in ((ahead, "issued_at"), (signed(verdict(0, 0, replayed_at=tomorrow)), "replayed_at")):
            with pytest.raises(InvalidArgument) as caught:
                ledger.append(envelope)
            assert (caught.value.reason, caught.value.fields) == ("CLOCK_AHEAD", ("envelope",))
            assert member in caught.value.message
    group = [*receipts(0), (ahead, None), *receipts(*range(2, 40))]  # enough for the process that checks receipts
    with grpc.insecure_channel(served.address) as channel:
        (answered,) = LedgerServiceStub(channel).AppendEntries(grouped(group))
    refused = [decode_status(each.error).reason for each in answered.results if each.HasField("error")]
    assert (refused, len(answered.results)) == (["CLOCK_AHEAD"], 40)


def grouped(*groups: list[Entry]) -> Iterator[ledger_pb2.AppendEntriesRequest]:
    for group in groups:
        entries = [ledger_pb2.NewEntry(envelope=envelope) for envelope, _ in group]
        yield ledger_pb2.AppendEntriesRequest(entries=entries)


def test_large_requests_keep_their_order_and_each_bad_entry_its_error(served: Served) -> None:
    groups = [list(receipts(*range(start, start + 40))) for start in range(0, 400, 40)]
    groups[3][7] = (b"junk", None)
    groups[3][8] = (signed(erasure(0, 0)), None)
    groups[5][0] = groups[4][39]
    groups[6] = groups[6][:2]  # a small one, which is checked elsewhere, between large ones
    with grpc.insecure_channel(served.address) as channel:
        responses = list(LedgerServiceStub(channel).AppendEntries(grouped(*groups)))
    answers = [result for response in responses for result in response.results]
    assert [len(response.results) for response in responses] == [len(group) for group in groups]
    assert [(at, each.error.code) for at, each in enumerate(answers) if each.HasField("error")] == [
        (127, grpc.StatusCode.INVALID_ARGUMENT.value[0]),
        (128, grpc.StatusCode.PERMISSION_DENIED.value[0]),
    ]
    expected = [*range(198), 197, *range(198, 359)]
    assert [each.appended.index for each in answers if each.HasField("appended")] == expected


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> tuple[list[asyncio.subprocess.Process], threading.Event]:
    """The processes that check receipts, in the order of their starts; the event is set once the first one is there."""
    processes: list[asyncio.subprocess.Process] = []
    start, there = AdmissionProcess._start, threading.Event()

    async def noted(process: AdmissionProcess) -> asyncio.subprocess.Process:
        processes.append(await start(process))
        await process.there.wait()
        there.set()
        return processes[-1]

    monkeypatch.setattr(AdmissionProcess, "_start", noted)
    return processes, there


def test_no_receipt_is_lost_or_doubled_where_the_process_that_checks_them_is_killed(
    serve: Serve, started: tuple[list[asyncio.subprocess.Process], threading.Event]
) -> None:
    processes, there = started
    waiting = [(at, list(receipts(*range(at, at + 20)))) for at in range(0, 1200, 20)]
    indexes: dict[int, int] = {}
    failed: list[grpc.StatusCode] = []
    with serve() as served, grpc.insecure_channel(served.address) as channel:
        assert len(list(LedgerServiceStub(channel).AppendEntries(grouped(waiting[0][1])))) == 1
        assert there.wait(60)
        while waiting:
            answered, sent = 0, [group for _, group in waiting[:20]]  # three streams at least, each of which ends one
            try:
                for response in LedgerServiceStub(channel).AppendEntries(grouped(*sent)):
                    for number, result in enumerate(response.results, waiting[answered][0]):
                        indexes[number] = result.appended.index
                    answered += 1
                    with suppress(ProcessLookupError):
                        os.kill(processes[-1].pid, signal.SIGKILL)
            except grpc.RpcError as error:
                failed.append(error.code())  # type: ignore[attr-defined]
            waiting = waiting[answered:]
        size = LedgerServiceStub(channel).GetCheckpoint(ledger_pb2.GetCheckpointRequest()).tree_size
    assert set(failed) == {grpc.StatusCode.UNAVAILABLE}
    assert len(processes) > 2
    assert sorted(indexes) == sorted(indexes.values()) == list(range(size)) == list(range(1200))


async def test_many_callers_are_answered_each_by_its_own(
    serve: Serve, started: tuple[list[asyncio.subprocess.Process], threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, asked = SharedQuestions.admitted, list[bool]()

    async def noted(self: SharedQuestions, *arguments: Any) -> list[Admitted | None]:
        found = await shared(self, *arguments)
        asked.extend(each is not None for each in found)
        return found

    monkeypatch.setattr(SharedQuestions, "admitted", noted)
    monkeypatch.setattr("services.ledger.intake._FOR_PROCESS", 2)
    with serve() as served:
        async with grpc.aio.insecure_channel(served.address) as channel:
            append = LedgerServiceStub(channel).AppendEntry

            async def answer(envelope: bytes, kept: Content | None = None) -> int | grpc.StatusCode:
                sent = None if kept is None else content_message(kept)
                try:
                    return (await append(ledger_pb2.AppendEntryRequest(envelope=envelope, content=sent))).index
                except grpc.aio.AioRpcError as error:
                    return error.code()

            async def answers(*numbers: int) -> list[int | grpc.StatusCode]:
                others = [b"junk", signed_receipt(0, tenant="another"), signed(erasure(0, 0))]
                receipts = (answer(signed_receipt(number), content(number)) for number in numbers)
                return await asyncio.gather(*receipts, *map(answer, others))

            refused = [
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.ALREADY_EXISTS,
                grpc.StatusCode.PERMISSION_DENIED,
            ]
            assert await answer(signed_receipt(0), content(0)) == 0
            first = await answers(*range(40))
            assert await asyncio.to_thread(started[1].wait, 60)
            asked.clear()
            second = await answers(*range(80))
    assert [first[40:], second[80:]] == [refused, refused]
    assert {*first[:40]} == {*range(40)}
    assert second[:40] == first[:40]
    assert {*second[40:80]} == {*range(40, 80)}
    assert any(asked)


def test_a_stream_waits_where_the_queue_is_full_instead_of_being_refused(
    settings: LedgerSettings, serve: Serve
) -> None:
    object.__setattr__(settings, "queue_size", 2)
    object.__setattr__(settings, "batch_size", 1)
    with serve() as served, LedgerClient.connect(served.address, wait=60) as ledger:
        assert indexes(list(append_many(ledger, receipts(*range(60))))) == list(range(60))


def test_a_stream_that_its_caller_cuts_leaves_the_log_in_order(served: Served, ledger: LedgerClient) -> None:
    cutting = LedgerClient.connect(served.address, wait=60)
    with append_many(cutting, receipts(*range(300))) as stream:
        first = next(stream)
    cutting.close()
    assert isinstance(first, Appended)
    again = indexes(list(append_many(ledger, receipts(*range(300)))))
    assert sorted(again, key=int) == list(range(300))
    assert again[0] == first.index


def test_a_server_that_stops_answers_what_it_took_and_then_says_so(serve: Serve) -> None:
    release = threading.Event()

    def some_then_wait() -> Iterator[Entry]:
        yield from receipts(0, 1, 2)
        release.wait(60)

    with serve() as served:
        client = LedgerClient.connect(served.address, wait=60)
        stream = append_many(client, some_then_wait())
        assert indexes([next(stream) for _ in range(3)]) == [0, 1, 2]
    with pytest.raises(Unavailable):
        next(stream)
    release.set()
    client.close()


def test_bytes_that_are_no_message_end_the_stream_after_the_answers_before_them(served: Served) -> None:
    entry = ledger_pb2.NewEntry(envelope=signed_receipt(0))
    good = ledger_pb2.AppendEntriesRequest(entries=[entry]).SerializeToString()
    with grpc.insecure_channel(served.address) as channel:
        call = channel.stream_stream("/kolm.ledger.v1.LedgerService/AppendEntries")(iter([good, b"\xff", good]))
        first = ledger_pb2.AppendEntriesResponse.FromString(next(call))
        assert [result.appended.index for result in first.results] == [0]
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
        # Only that call has ended.
        assert LedgerServiceStub(channel).GetCheckpoint(ledger_pb2.GetCheckpointRequest()).tree_size == 1


def test_an_envelope_of_exactly_the_limit_passes_and_one_byte_more_does_not(ledger: LedgerClient) -> None:
    envelope = signed_receipt(0)
    fits = envelope[:-1] + b" " * (MAX_ENVELOPE_BYTES - len(envelope)) + envelope[-1:]
    over = envelope[:-1] + b" " * (MAX_ENVELOPE_BYTES + 1 - len(envelope)) + envelope[-1:]
    assert indexes(list(append_many(ledger, [(fits, None), (over, None)]))) == [0, "InvalidArgument"]


def test_a_request_without_entries_or_with_too_many_ends_the_stream(served: Served) -> None:
    one = ledger_pb2.NewEntry(envelope=signed_receipt(0))
    with grpc.insecure_channel(served.address) as channel:
        for entries in ([], [one] * 1025):
            call = LedgerServiceStub(channel).AppendEntries(iter([ledger_pb2.AppendEntriesRequest(entries=entries)]))
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
            assert caught.value.details().startswith("entries: ")  # type: ignore[attr-defined]


def test_operators_may_send_erasures_over_a_stream(served: Served, operator_token: str) -> None:
    with LedgerClient.connect(served.address, wait=60, token=operator_token) as operator:
        entries = [(signed_receipt(0), content(0)), (signed(erasure(0, 0)), None)]
        # The erasure names an entry that the log has to hold before it is checked, so the first is waited for.
        assert indexes(list(append_many(operator, entries[:1]))) == [0]
        assert indexes(list(append_many(operator, entries[1:]))) == [1]


QUEUE = 3


@contextmanager
def held(database: Path) -> Iterator[None]:
    """Another process writes to the file, and the ledger's writer has to wait."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def test_a_full_queue_refuses_with_the_time_to_come_back_and_nothing_is_lost(
    serve: Serve, settings: LedgerSettings
) -> None:
    object.__setattr__(settings, "queue_size", QUEUE)
    object.__setattr__(settings, "batch_size", 1)
    with serve() as served, LedgerClient.connect(served.address, wait=60) as client:
        client.append(signed_receipt(0))
        indexes: dict[int, int] = {}
        refused: dict[int, ResourceExhausted] = {}

        def append(number: int) -> None:
            try:
                indexes[number] = client.append(signed_receipt(number)).index
            except ResourceExhausted as error:
                refused[number] = error
                full.set()

        full = threading.Event()
        with ThreadPoolExecutor(3 * QUEUE) as pool, held(settings.data_dir / "ledger.sqlite3"):
            appending = pool.map(append, range(1, 3 * QUEUE))
            assert full.wait(timeout=8)
        list(appending)
        assert all(error.retry_after and 0 < error.retry_after <= 5 for error in refused.values())
        assert len(indexes) >= QUEUE
        assert {*indexes, *refused} == set(range(1, 3 * QUEUE))
        for number in refused:
            indexes[number] = client.append(signed_receipt(number)).index
        assert sorted(indexes.values()) == list(range(1, 3 * QUEUE))
