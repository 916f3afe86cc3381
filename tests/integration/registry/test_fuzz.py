"""Random messages to every RPC of the registry: no bug."""

from __future__ import annotations

from kolm.registry.v1 import registry_pb2
from tests.fuzzing import flood
from tests.integration.registry.conftest import Serve

SERVICE = registry_pb2.DESCRIPTOR.services_by_name["RegistryService"]


def test_random_messages_are_answered_or_refused(serve: Serve) -> None:
    with serve() as served:
        flood(served.address, SERVICE)
