"""A tiny model for the session."""

from pathlib import Path

import pytest

from tests.fakes.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))
