"""A served registry for tests of real stubs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kolm.registry.v1.registry_pb2_grpc import add_RegistryServiceServicer_to_server
from services.registry.__main__ import opened_servicer
from services.registry.servicer import SERVICE
from services.registry.settings import RegistrySettings
from services.runtime.server import Mount
from tests.serving import serving


@contextmanager
def serving_registry(folder: Path, ledger: str) -> Iterator[str]:
    """The address of a registry with its data in `folder/registry`, which trusts the keys in `folder/trusted`."""
    settings = RegistrySettings(data_dir=folder / "registry", ledger=ledger, trusted_keys=folder / "trusted")
    with opened_servicer(settings) as (servicer, *_):
        mount = Mount(SERVICE, lambda server: add_RegistryServiceServicer_to_server(servicer, server))
        with serving(mount) as served:
            yield served.address
