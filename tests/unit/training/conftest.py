"""Fixtures of the training's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.fakes.tiny_model import make_tiny_model, tiny_model
from tests.unit.training.material import Material, material_of

__all__ = ["tiny_model"]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models this small lose more to waiting for a second thread than they gain by it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return material_of(make_tiny_model(tmp_path_factory.mktemp("base"), layers=4))
