"""Fixtures of the training's tests."""

import pytest

from tests.fakes.tiny_model import make_tiny_model
from tests.unit.training.material import Material, material_of


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return material_of(make_tiny_model(tmp_path_factory.mktemp("base"), layers=4))
