"""Random messages to every RPC of the ledger: no bug, no loss."""

from __future__ import annotations

from random import Random

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from kolm.ledger.v1 import ledger_pb2
from services.client import LedgerClient
from tests.fuzzing import answer_to, random_message
from tests.serving import Served
from tests.unit.ledger.builders import signed_receipt

SERVICE = ledger_pb2.DESCRIPTOR.services_by_name["LedgerService"]


@pytest.mark.parametrize("name", [method.name for method in SERVICE.methods])
def test_random_messages_are_answered_or_refused(served: Served, ledger: LedgerClient, name: str) -> None:
    method, random = SERVICE.methods_by_name[name], Random(name)
    kind = GetMessageClass(method.input_type)
    index = ledger.append(signed_receipt(0)).index
    size = ledger.checkpoint().tree_size
    with grpc.insecure_channel(served.address) as channel:
        for _ in range(30):
            requests = [random_message(kind, random).SerializeToString() for _ in range(3)]
            code = answer_to(channel, method, requests, 0.3 if method.server_streaming else 30.0)
            assert code.name not in ("INTERNAL", "UNKNOWN", "DATA_LOSS"), requests
    assert ledger.checkpoint().tree_size == size
    assert ledger.append(signed_receipt(0)).index == index
