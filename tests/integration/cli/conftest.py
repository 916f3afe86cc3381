from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from kolm.registry.v1.registry_pb2_grpc import add_RegistryServiceServicer_to_server
from ledger.keys.ed25519 import SigningKey
from services.cli.up.local_services import LocalServices
from services.cli.up.up_options import ListenOptions
from services.registry.__main__ import opened_servicer
from services.registry.servicer import SERVICE
from services.registry.settings import RegistrySettings
from services.runtime.server import Mount
from tests import cli
from tests.integration.auditor.deployment import Deployment, opened_deployment
from tests.integration.cli.scripted import ScriptedGeneration, mount
from tests.serving import serving
from tests.unit.ledger.builders import KEYS

Kolm = Callable[..., cli.Ended]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """A served ledger, its data directory `tmp_path`, which trusts that directory's issuer and operator too."""
    own = [SigningKey.load_or_create(tmp_path / f"keys/{role}.pem", role) for role in ("receipts", "operator")]
    with opened_deployment(tmp_path, [KEYS["operator"], *own]) as opened:
        yield opened


@pytest.fixture
def kolm(deployment: Deployment, tmp_path: Path) -> Kolm:
    """Runs a command against the deployment."""
    return partial(cli.kolm, environment={"KOLM_LEDGER": deployment.address, "KOLM_DATA_DIR": tmp_path})


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[LocalServices]:
    """The services of each start, which starts nothing."""
    found: list[LocalServices] = []
    monkeypatch.setattr("services.cli.up.up._run", lambda services, *others, as_json: found.append(services))
    monkeypatch.setattr(ListenOptions, "check_ports", lambda *_: None)
    return found


@pytest.fixture
def scripted() -> ScriptedGeneration:
    return ScriptedGeneration()


@pytest.fixture
def address(scripted: ScriptedGeneration) -> Iterator[str]:
    """The address of a scripted generation server."""
    with serving(mount(scripted)) as served:
        yield served.address


@pytest.fixture
def registry(deployment: Deployment, tmp_path: Path) -> Iterator[str]:
    """The address of a registry beside the deployment."""
    settings = RegistrySettings(
        data_dir=tmp_path / "registry", ledger=deployment.address, trusted_keys=tmp_path / "trusted"
    )
    with opened_servicer(settings) as opened:
        mounted = Mount(SERVICE, lambda server: add_RegistryServiceServicer_to_server(opened.servicer, server))
        with serving(mounted) as served:
            yield served.address
