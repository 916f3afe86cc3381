"""Answers of a server that this client does not understand."""

from __future__ import annotations

import pytest

from kolm.ledger.v1 import documents_pb2, ledger_pb2
from ledger.errors import ProofError
from services.client.errors import Internal
from services.client.ledger import log_wire
from tests.unit.ledger.builders import receipt, signed, verdict


def test_values_of_a_newer_server_are_one_error_of_the_client_s_own_family() -> None:
    with pytest.raises(Internal, match="does not know"):
        log_wire.receipt(documents_pb2.Receipt(outcome=99))  # type: ignore[arg-type]
    with pytest.raises(Internal, match="does not know"):
        log_wire.entry_result(ledger_pb2.EntryResult())


def test_a_time_beyond_the_calendar_is_one_too() -> None:
    message = ledger_pb2.GetCheckpointResponse(cosignatures=[documents_pb2.Cosignature(witness="w")])
    message.cosignatures[0].sign_time.seconds = 10**15
    with pytest.raises(Internal, match="years 1 to 9999"):
        log_wire.signed_checkpoint(message)


def test_what_a_receipt_says_is_what_was_signed_and_another_document_is_none() -> None:
    assert log_wire.receipt(documents_pb2.Receipt(envelope=signed(receipt(3)))).document == receipt(3)
    assert log_wire.verdict(documents_pb2.Verdict(envelope=signed(verdict(3, 3)))).document == verdict(3, 3)
    with pytest.raises(ProofError):
        _ = log_wire.receipt(documents_pb2.Receipt(envelope=signed(verdict(3, 3)))).document
    with pytest.raises(ProofError):
        _ = log_wire.verdict(documents_pb2.Verdict(envelope=signed(receipt(3)))).document
