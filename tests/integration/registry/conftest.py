from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kolm.registry.v1.registry_pb2_grpc import add_RegistryServiceServicer_to_server
from services.client.registry import RegistryClient
from services.registry.__main__ import opened_servicer
from services.registry.servicer import SERVICE
from services.registry.settings import RegistrySettings
from services.runtime.server import Mount
from tests.integration.auditor.deployment import Deployment, opened_deployment
from tests.serving import Served, serving
from tests.unit.ledger.builders import KEYS

Serve = Callable[..., AbstractContextManager[Served]]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """A served ledger; its trusted keys, and a publisher's, are in `tmp_path/trusted`."""
    with opened_deployment(tmp_path) as opened:
        KEYS["publisher"].publish(tmp_path / "trusted")
        yield opened


@pytest.fixture
def serve(tmp_path: Path, deployment: Deployment) -> Serve:
    """Serves the registry in `tmp_path/registry`; again and again, as restarts of one process would."""

    @contextmanager
    def served(**changes: Any) -> Iterator[Served]:
        values = {"data_dir": tmp_path / "registry", "ledger": deployment.address, "trusted_keys": tmp_path / "trusted"}
        with opened_servicer(RegistrySettings(**(values | changes))) as opened:
            opened.publishing.finish_proposals()
            mount = Mount(SERVICE, lambda server: add_RegistryServiceServicer_to_server(opened.servicer, server))
            with serving(mount) as running:
                yield running

    return served


@pytest.fixture
def registry(serve: Serve) -> Iterator[RegistryClient]:
    with serve() as served, RegistryClient.connect(served.address, wait=60) as client:
        yield client
