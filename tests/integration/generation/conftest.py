"""A deployment of servers for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.generation.deployment import Deployment


@pytest.fixture
async def deployment(tmp_path: Path, model: Path) -> AsyncIterator[Deployment]:
    """With its ledger up."""
    deployment = Deployment(tmp_path, model)
    await deployment.start_ledger()
    yield deployment
    await deployment.stop()
