"""What a client makes of a ledger's answers: feeds of entries, and documents off the wire."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kolm.ledger.v1 import documents_pb2, ledger_pb2
from kolm.ledger.v1 import ledger_pb2 as pb
from ledger.errors import ProofError
from services.client.errors import Internal
from services.client.ledger import log_wire
from services.client.ledger.append_stream import Feed
from tests.unit.ledger.builders import receipt, signed, verdict


def message(size: int = 0) -> pb.NewEntry:
    return pb.NewEntry(envelope=b"x" * size)


def test_everything_comes_out_once_and_in_order() -> None:
    messages = [message(number) for number in range(1000)]
    groups = list(Feed(messages, 64, 2**20))
    assert [each for group in groups for each in group] == messages
    assert max(map(len, groups)) <= 64


def test_a_group_does_not_wait_to_be_filled() -> None:
    seen = threading.Event()

    def slow() -> Iterator[pb.NewEntry]:
        yield message(1)
        assert seen.wait(60), "the first message was held back"
        yield message(2)

    groups = iter(Feed(slow(), 64, 2**20))
    assert next(groups) == [message(1)]
    seen.set()
    assert next(groups) == [message(2)]


def test_a_group_ends_with_the_message_that_takes_it_past_the_limit() -> None:
    read = threading.Event()

    def messages() -> Iterator[pb.NewEntry]:
        yield message(10)
        yield from (message(600), message(600), message(600))
        read.set()

    groups = iter(Feed(messages(), 64, 1000))
    first = next(groups)
    assert read.wait(60)
    assert max(len(group) for group in [first, *groups]) <= 3


def test_what_the_messages_raise_is_kept_and_ends_the_groups() -> None:
    def failing() -> Iterator[pb.NewEntry]:
        yield message(1)
        raise RuntimeError("no more paper")

    feed = Feed(failing(), 64, 2**20)
    assert [each for group in feed for each in group] == [message(1)]
    with pytest.raises(RuntimeError, match="paper"):
        raise feed.failure or AssertionError


def test_a_closed_feed_reads_no_further_and_holds_nobody_up() -> None:
    taken = 0

    def endless() -> Iterator[pb.NewEntry]:
        nonlocal taken
        while True:
            taken += 1
            yield message(1)

    feed = Feed(endless(), 4, 2**20)
    groups = iter(feed)
    next(groups)
    feed.close()
    assert sum(1 for _ in groups) <= 4
    assert taken < 100


def test_values_of_a_newer_server_are_one_error_of_the_client_s_own_family() -> None:
    with pytest.raises(Internal):
        log_wire.receipt(documents_pb2.Receipt(outcome=99))  # type: ignore[arg-type]
    with pytest.raises(Internal):
        log_wire.entry_result(ledger_pb2.EntryResult())


def test_a_time_beyond_the_calendar_is_one_too() -> None:
    message = ledger_pb2.GetCheckpointResponse(cosignatures=[documents_pb2.Cosignature(witness="w")])
    message.cosignatures[0].sign_time.seconds = 10**15
    with pytest.raises(Internal):
        log_wire.signed_checkpoint(message)


def test_what_a_receipt_says_is_what_was_signed_and_another_document_is_none() -> None:
    assert log_wire.receipt(documents_pb2.Receipt(envelope=signed(receipt(3)))).document == receipt(3)
    assert log_wire.verdict(documents_pb2.Verdict(envelope=signed(verdict(3, 3)))).document == verdict(3, 3)
    with pytest.raises(ProofError):
        _ = log_wire.receipt(documents_pb2.Receipt(envelope=signed(verdict(3, 3)))).document
    with pytest.raises(ProofError):
        _ = log_wire.verdict(documents_pb2.Verdict(envelope=signed(receipt(3)))).document
