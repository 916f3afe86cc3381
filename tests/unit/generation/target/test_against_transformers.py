"""The canonical pass computes the same function as transformers' own models, for every family and RoPE variant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.generation.target.config.config import read_config
from services.generation.target.cpu import load_target
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target
from tests.fakes.tiny_families import FAMILIES, draw_vectors
from tests.fakes.tiny_model import make_tiny_model

LENGTH = 150
MODELS: dict[str, dict[str, Any]] = {
    "llama, tied": {"architecture": "llama", "tie_word_embeddings": True},
    "llama, biased": {
        "architecture": "llama", "attention_bias": True, "mlp_bias": True,
    },
    "llama, a window that means nothing": {"architecture": "llama", "sliding_window": 40},
    "llama, rope linear": {
        "architecture": "llama",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    },
    "llama, rope llama3": {
        "architecture": "llama",
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        },
    },
    "llama, rope dynamic": {
        "architecture": "llama",
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    },
    "qwen2": {"architecture": "qwen2"},
    "qwen2, yarn, sliding": {
        "architecture": "qwen2", "use_sliding_window": True, "sliding_window": 70, "max_window_layers": 1,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128,
        },
    },
    "qwen3": {"architecture": "qwen3", "head_dim": 24},
    "mistral, sliding": {"architecture": "mistral", "sliding_window": 40},
    "mistral, odd sizes": {"architecture": "mistral", "hidden": 72, "heads": 6, "kv_heads": 3, "intermediate_size":
    101},
    "gpt_oss, bounds that are reached": FAMILIES["gpt_oss"] | {"swiglu_limit": 0.5, "swiglu_alpha": 3.0},
} | FAMILIES  # fmt: skip


@pytest.fixture(scope="module", params=MODELS, ids=list(MODELS))
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_vectors(make_tiny_model(tmp_path_factory.mktemp("model"), **MODELS[request.param]))


def logits_of(target: Target, tokens: list[int]) -> np.ndarray:
    table: list[int] = []
    target.blocks.extend(table, len(tokens))
    rows = RowsBuilder()
    rows.add_chunk(table, 0, tokens[:50], want_last=False)
    target.forward(rows.build())
    rows = RowsBuilder()
    rows.add_tree(table, 50, tokens[50:], range(-1, len(tokens) - 51))
    logits = target.forward(rows.build()).logits
    target.blocks.release(table)
    return logits


def transformers_logits(directory: Path, tokens: list[int]) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0, 50:].numpy()


def whole_context(directory: Path) -> Target:
    return load_target(directory, context_length=read_config(directory).context_length)


def test_logits_are_those_of_transformers_up_to_rounding(directory: Path) -> None:
    tokens = [(7 * i * i + 3 * i) % 384 for i in range(LENGTH)]
    found, expected = logits_of(whole_context(directory), tokens), transformers_logits(directory, tokens)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)
