"""Families beside llama.cpp: one request's tokens a second, of the same GGUF files, with the same threads.

SmolLM2, the files that are named, and random 4-bit weights in the shapes of public models whose weights nobody has put
into a package.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gguf.constants import GGMLQuantizationType
from rich.progress import track
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.lfm2 import Lfm2Config, Lfm2ForCausalLM
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from benchmarks.real import Kolm, seconds
from benchmarks.sizes import random_model
from services.generation.target.kernels.machine import cpus
from services.generation.target.model_path import model_path
from tests.fakes.converted_gguf import convert

_ROUNDS, _TOKENS, _PROMPT = 5, 64, 512
SHAPES: Mapping[str, tuple[type[PreTrainedModel], PretrainedConfig]] = {
    "LFM2-1.2B": (
        Lfm2ForCausalLM,
        Lfm2Config(
            vocab_size=65536, hidden_size=2048, intermediate_size=8192, block_auto_adjust_ff_dim=False,
            num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=True,
            layer_types=["full_attention" if n in (2, 5, 8, 10, 12, 14) else "conv" for n in range(16)],
        ),
    ),
    "Qwen3.5-0.8B": (
        Qwen3_5ForCausalLM,
        Qwen3_5TextConfig(
            vocab_size=248320, hidden_size=1024, intermediate_size=3584, num_hidden_layers=24, num_attention_heads=8,
            num_key_value_heads=2, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=16,
            linear_key_head_dim=128, linear_value_head_dim=128, tie_word_embeddings=True,
        ),
    ),
}  # fmt: skip


def measure(bench: Path | None, files: Sequence[Path]) -> list[dict[str, Any]]:
    """A row for each file: the most tokens a second of rounds in which both take turns."""
    if bench is None:
        raise SystemExit("--llama-bench: name llama.cpp's program of this name")
    with tempfile.TemporaryDirectory() as folder:
        return [_beside(bench, path) for path in track([*_files(files, Path(folder))], "families")]


def _files(named: Sequence[Path], folder: Path) -> Iterator[Path]:
    yield from (model_path("smollm2"), *named)
    for name, shape in SHAPES.items():
        directory = random_model(shape, folder / name, torch.float32)
        yield convert(directory, folder / f"{name}.random.q4_0.gguf", GGMLQuantizationType.Q4_0)
        (directory / "model.safetensors").unlink()


def _beside(bench: Path, path: Path) -> dict[str, Any]:
    kolm = Kolm(path)
    rates: dict[str, list[float]] = {
        f"{who}, {what}": [] for what in ("tokens", "prompt") for who in ("kolm", "llama.cpp")
    }
    for turn in range(_ROUNDS):
        decoding = seconds(kolm.generate, [turn + 10], _TOKENS + 1) - seconds(kolm.generate, [turn + 10], 1)
        rates["kolm, tokens"].append(_TOKENS / decoding)
        rates["kolm, prompt"].append(_PROMPT / seconds(kolm.generate, [turn + 10, *range(300, 299 + _PROMPT)], 1))
        asked = [bench, "-m", path, "-t", cpus(), "-p", _PROMPT, "-n", _TOKENS, "-r", 1, "-o", "json"]
        done = subprocess.run([*map(str, asked)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{path.name}: llama-bench failed: {done.stderr.strip()}")
        for test in json.loads(done.stdout):
            rates[f"llama.cpp, {'tokens' if test['n_gen'] else 'prompt'}"].append(test["avg_ts"])
    best = {name: round(max(each), 1) for name, each in rates.items()}
    faster = {w: round(best[f"kolm, {w}"] / best[f"llama.cpp, {w}"], 2) for w in ("tokens", "prompt")}
    return {
        "file": path.name,
        "family": kolm.target.config.architecture,
        "arithmetic": kolm.target.numerics["arithmetic"],
        "megabytes": path.stat().st_size >> 20,
        "a second": best,
        "kolm is faster by": faster,
    }
