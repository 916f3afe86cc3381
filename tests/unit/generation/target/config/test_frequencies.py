"""Rotary frequencies of 40 decimals are what transformers' formulas give without float32's roundings on the way."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama import LlamaConfig

from services.generation.target.config.config import read_config
from services.generation.target.config.rope import KINDS, Rotation, rotary, rotation_of
from services.generation.target.errors import ConfigInvalid, UnsupportedArchitecture
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_model import make_tiny_model

CONTEXT = 8192
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "linear, not a binary fraction": {"rope_type": "linear", "factor": 2.7},
    "llama3": {**LLAMA3, "factor": 8.0, "original_max_position_embeddings": 8192},
    "llama3, short": {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 64},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    "yarn, factor null": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 2048},
    "yarn, no stretching": {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 8192},
    "yarn, attention factor": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 1024, "attention_factor": 0.8,
    },
    "yarn, mscale, no truncation": {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707,
        "mscale_all_dim": 1.0, "beta_fast": 24.0, "beta_slow": 1.5, "truncate": False,
    },
    "yarn, one mscale": {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707,
    },
    "yarn, an empty ramp": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4},
}  # fmt: skip
SHAPES = list(product((24, 64, 80, 96, 128), (1e4, 1.5e5, 5e5, 1e6)))


def formulas_in_float64(
    monkeypatch: pytest.MonkeyPatch, parameters: dict[str, Any], dim: int
) -> tuple[np.ndarray, float]:
    """transformers' own function, with torch's names of float32 meaning float64 while it runs."""
    config = LlamaConfig(
        head_dim=dim, num_attention_heads=1, max_position_embeddings=CONTEXT, rope_parameters=dict(parameters)
    )
    with monkeypatch.context() as patch:
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch, "float32", torch.float64)
        frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
    assert frequencies.dtype == torch.float64
    return frequencies.numpy(), factor


def ulps(found: np.ndarray, expected: np.ndarray) -> int:
    bits = (values.astype(np.float32).view(np.int32).astype(np.int64) for values in (found, expected))
    return int(np.abs(np.subtract(*bits)).max())


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=list(SCALINGS))
@pytest.mark.filterwarnings("ignore")
def test_frequencies_are_those_of_transformers_formulas(
    monkeypatch: pytest.MonkeyPatch, scaling: dict[str, Any]
) -> None:
    for dim, theta in SHAPES:
        parameters = {"rope_theta": theta, **scaling}
        frequencies, factor = rotary(parameters, dim, CONTEXT)
        expected, expected_factor = formulas_in_float64(monkeypatch, parameters, dim)
        assert ulps(np.array(frequencies), expected) <= 1, (dim, theta)
        assert factor == np.float32(expected_factor)


@pytest.mark.parametrize("kind", ["default", "dynamic"])
def test_unscaled_frequencies_are_correctly_rounded(kind: str) -> None:
    for dim, theta in SHAPES:
        found, factor = rotary({"rope_type": kind, "rope_theta": theta, "factor": 2.0}, dim, CONTEXT)
        with mpmath.workdps(60):
            exact = [float(mpmath.power(theta, -mpmath.mpf(2 * i) / dim)) for i in range(dim // 2)]
        assert np.array_equal(np.array(found), np.array(exact).astype(np.float32).astype(np.float64))
        assert factor == 1.0


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=list(SCALINGS))
@pytest.mark.filterwarnings("ignore")
def test_transformers_float32_is_near(scaling: dict[str, Any]) -> None:
    """Its power is rounded in exponent and result, and yarn's 1 - (1 - ramp) loses bits."""
    for dim, theta in SHAPES:
        parameters = {"rope_theta": theta, **scaling}
        members = {"head_dim": dim, "num_attention_heads": 1, "max_position_embeddings": CONTEXT}
        config = LlamaConfig(**members, rope_parameters=dict(parameters))
        expected, _ = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, torch.device("cpu"))
        np.testing.assert_allclose(rotary(parameters, dim, CONTEXT)[0], expected.numpy(), rtol=3e-6)


def test_divisors_divide_before_anything_is_rounded() -> None:
    parameters = {"rope_theta": 5e5}
    found, _ = rotary(parameters, 64, CONTEXT, [float(np.float32(1.1))] * 32)
    with mpmath.workdps(60):
        divisor = mpmath.mpf(float(np.float32(1.1)))
        exact = [float(mpmath.power(5e5, -mpmath.mpf(2 * i) / 64) / divisor) for i in range(32)]
    assert np.array_equal(np.array(found), np.array(exact).astype(np.float32).astype(np.float64))


@pytest.mark.parametrize(
    "change",
    [
        {"rope_theta": 0.0}, {"rope_theta": 1.0}, {"rope_theta": True}, {"rope_theta": "ten"}, {"factor": None},
        {"factor": -1.0}, {"factor": float("nan")}, {"factor": float("inf")}, {"low_freq_factor": 0},
    ],
    ids=str,
)  # fmt: skip
def test_a_number_out_of_range_is_named(change: dict[str, Any]) -> None:
    parameters = {"rope_theta": 1e4, **SCALINGS["llama3"]} | change
    with pytest.raises(ConfigInvalid, match=next(iter(change))):
        rotary(parameters, 64, CONTEXT)


def test_configurations_of_directories_read_these_frequencies(tmp_path: Path) -> None:
    parameters = {"rope_theta": 5e5, **SCALINGS["llama3, short"]}
    config = read_config(make_tiny_model(tmp_path, rope_parameters=parameters))
    assert config.rotations == (Rotation(*rotary(parameters, config.head_dim, 512)),) * 2
    assert config.context_length == 512


def test_configurations_of_gguf_files_read_these_frequencies(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 32, dtype=np.float32)

    def with_factors(tensors: dict[str, Any]) -> None:
        tensors["rope_freqs.weight"] = (0, factors)

    config = read_config(make_tiny_gguf(tmp_path / "tiny.gguf", change_tensors=with_factors))
    assert config.rotations[0].inverse_frequencies == rotary({"rope_theta": 1e4}, 64, 512, factors.tolist())[0]


def test_a_kind_that_is_not_known_is_refused(tmp_path: Path) -> None:
    assert set(KINDS) == {"default", "linear", "llama3", "yarn", "longrope", "proportional", "dynamic"}
    with pytest.raises(UnsupportedArchitecture, match=r"'spiral' is not supported; supported: default, .*proportional"):
        rotation_of({"rope_type": "spiral", "rope_theta": 1e4}, 64, CONTEXT)
