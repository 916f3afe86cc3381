"""A deployment of servers for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.generation.deployment import Deployment, drafting_pays


@pytest.fixture
async def deployment(tmp_path: Path, model: Path) -> AsyncIterator[Deployment]:
    """With its ledger up; its servers draft."""
    with drafting_pays():
        deployment = Deployment(tmp_path, model)
        await deployment.start_ledger()
        yield deployment
        await deployment.stop()
