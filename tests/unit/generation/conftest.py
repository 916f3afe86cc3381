"""Small random models, made once a run."""

from pathlib import Path

import pytest
import torch

from services.generation.target.config.config import TargetConfig, read_config
from services.generation.target.cpu import CpuTarget, load_target
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_model import make_tiny_model

torch.set_num_threads(1)  # tiny products gain nothing from a second thread, and a busy machine makes it wait for one


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> TargetConfig:
    """The configuration of a model of eight layers, for heads."""
    return read_config(make_tiny_model(tmp_path_factory.mktemp("base"), layers=8))


@pytest.fixture(scope="session")
def target(model: Path) -> CpuTarget:
    """The tiny model with a cache of 40 blocks, roomy for every test that does not ask for less."""
    return load_target(model, cache_tokens=40 * 64)


@pytest.fixture(scope="session")
def whole_number_target(tmp_path_factory: pytest.TempPathFactory) -> CpuTarget:
    """A tiny model of 4-bit weights that computes its linear layers in int8."""
    path = make_tiny_gguf(tmp_path_factory.mktemp("int8") / "tiny.gguf", storage="q4_1")
    return load_target(path, cache_tokens=40 * 64, arithmetic="int8")


@pytest.fixture(scope="session")
def cramped_target(model: Path) -> CpuTarget:
    """The same model with a cache of four blocks: sequences preempt each other. Two threads run its passes."""
    return load_target(model, cache_tokens=4 * 64, threads=2)
