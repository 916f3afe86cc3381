from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ledger.keys.ed25519 import SigningKey
from services.cli.main import app
from tests.integration.auditor.deployment import Deployment, opened_deployment
from tests.integration.cli.scripted import ScriptedGeneration, mount
from tests.registry import serving_registry
from tests.serving import serving
from tests.unit.ledger.builders import KEYS

Kolm = Callable[..., tuple[int, str, str]]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """A served ledger, its data directory `tmp_path`, which trusts that directory's issuer and operator too."""
    own = [SigningKey.load_or_create(tmp_path / f"keys/{role}.pem", role) for role in ("receipts", "operator")]
    with opened_deployment(tmp_path, [KEYS["operator"], *own]) as opened:
        yield opened


@pytest.fixture
def kolm(deployment: Deployment, tmp_path: Path) -> Kolm:
    """Runs a command against the deployment; exit code, stdout and stderr."""
    environment = {
        "KOLM_LEDGER": deployment.address,
        "KOLM_DATA_DIR": str(tmp_path),
        "COLUMNS": "100",
        "TERM": "dumb",
    }

    def run(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner(env=environment).invoke(app, list(arguments))
        return result.exit_code, result.stdout, result.stderr

    return run


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
    with serving_registry(tmp_path, deployment.address) as address:
        yield address
