"""Random messages to every RPC of the ledger: no bug, no loss."""

from __future__ import annotations

from kolm.ledger.v1 import ledger_pb2
from services.client import LedgerClient
from tests.fuzzing import flood
from tests.serving import Served
from tests.unit.ledger.builders import signed_receipt

SERVICE = ledger_pb2.DESCRIPTOR.services_by_name["LedgerService"]


def test_random_messages_are_answered_or_refused(served: Served, ledger: LedgerClient) -> None:
    index = ledger.append(signed_receipt(0)).index
    size = ledger.checkpoint().tree_size
    flood(served.address, SERVICE)
    assert ledger.checkpoint().tree_size == size
    assert ledger.append(signed_receipt(0)).index == index
