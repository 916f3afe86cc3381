"""A tiny model for the session, a house of servers for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.tiny_model import make_tiny_model
from tests.integration.generation.house import House


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
async def house(tmp_path: Path, model: Path) -> AsyncIterator[House]:
    """With its ledger up."""
    house = House(tmp_path, model)
    await house.start_ledger()
    yield house
    await house.stop()
