"""Random messages to every RPC of the registry: no bug."""

from __future__ import annotations

from random import Random

import grpc
from google.protobuf.message_factory import GetMessageClass

from kolm.registry.v1 import registry_pb2
from tests.fuzzing import answer_to, random_message
from tests.integration.registry.conftest import Serve

SERVICE = registry_pb2.DESCRIPTOR.services_by_name["RegistryService"]


def test_random_messages_are_answered_or_refused(serve: Serve) -> None:
    random = Random("registry")
    with serve() as served, grpc.insecure_channel(served.address) as channel:
        for method in SERVICE.methods:
            kind = GetMessageClass(method.input_type)
            for _ in range(20):
                requests = [random_message(kind, random).SerializeToString() for _ in range(3)]
                code = answer_to(channel, method, requests, 5.0 if method.server_streaming else 30.0)
                assert code.name not in ("INTERNAL", "UNKNOWN", "DATA_LOSS"), (method.name, requests)
