"""Models of several sizes: how long a start takes with nothing kept and again, whether the probe passes, passes.

The published SmolLM2 file, and random bfloat16 weights in the shapes of two larger public models.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from safetensors.torch import save_file
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from benchmarks.real import passes
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.kernels.compilation import CACHE as KERNELS
from services.generation.target.model_path import model_path

SHAPES: Mapping[str, tuple[type[PreTrainedModel], PretrainedConfig]] = {
    "Qwen2.5-0.5B": (
        Qwen2ForCausalLM,
        Qwen2Config(
            vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
            num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=True,
        ),
    ),
    "Llama-3.2-1B": (
        LlamaForCausalLM,
        LlamaConfig(
            vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
            num_key_value_heads=8, max_position_embeddings=131072, tie_word_embeddings=True,
        ),
    ),
}  # fmt: skip


def measure() -> list[dict[str, Any]]:
    """A row for each model. Starts are whole processes, from their beginning to the first token of an answer."""
    return [_measure("SmolLM2-135M", model_path("smollm2")), *map(_measure_random, track(SHAPES, "sizes"))]


def _measure_random(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return _measure(name, random_model(SHAPES[name], Path(folder)))


def _measure(name: str, model: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        (first, probe), (again, _) = _start(model, cache), _start(model, cache)
    target = load_target(model)
    assert isinstance(target, CpuTarget)
    seconds = {"with nothing kept": first, "again": again}
    return {"model": name, "seconds to the first token": seconds, "probe": probe, "pass": passes(target)}


def _start(model: Path, cache: str) -> tuple[float, dict[str, Any]]:
    """(seconds until there was a token, the probe). Compiled code, digests and probes are kept in `cache` alone."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_token", str(model)], text=True, stdout=subprocess.PIPE, check=True,
        env=os.environ | {"XDG_CACHE_HOME": cache, KERNELS: cache},
    )  # fmt: skip
    return round(time.perf_counter() - started, 1), json.loads(done.stdout)


def random_model(
    shape: tuple[type[PreTrainedModel], PretrainedConfig], folder: Path, dtype: torch.dtype = torch.bfloat16
) -> Path:
    kind, config = shape
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    with torch.device("meta"):
        shapes = {name: each.shape for name, each in kind(config).named_parameters()}
    tensors = {
        name: torch.ones(shape, dtype=dtype) if len(shape) == 1 else torch.empty(shape, dtype=dtype).normal_(std=0.02)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    config.architectures = [kind.__name__]
    config.dtype = dtype
    config.save_pretrained(folder)
    bundled = model_path(Path("smollm2"))
    AutoTokenizer.from_pretrained(bundled.parent, gguf_file=bundled.name).save_pretrained(folder)
    return folder
