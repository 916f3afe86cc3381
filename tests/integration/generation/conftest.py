"""A tiny model for the session, a deployment of servers for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.tiny_model import make_tiny_model
from tests.integration.generation.deployment import Deployment


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
async def deployment(tmp_path: Path, model: Path) -> AsyncIterator[Deployment]:
    """With its ledger up."""
    deployment = Deployment(tmp_path, model)
    await deployment.start_ledger()
    yield deployment
    await deployment.stop()
