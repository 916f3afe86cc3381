"""Models of several sizes: how long a start takes with nothing kept and again, whether the probe passes, passes.

The published SmolLM2 file, and random bfloat16 weights in the shapes of two larger public models.
"""

from __future__ import annotations

import json
import os
import shutil
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
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from benchmarks.real import PROMPTS, passes
from services.generation.engine.core import EngineCore
from services.generation.engine.events import Event
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.settings import EngineSettings
from services.generation.model import load_model
from services.generation.target.canonical.kernels.cache_folder import CACHE as KERNELS
from services.generation.target.cpu import CpuTarget
from services.generation.target.loading import load_target
from services.generation.target.model_path import model_path

_TOKENIZER = Path(__file__).parents[1] / "demo" / "base"
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
        return _measure(name, _random_model(name, Path(folder)))


def _measure(name: str, model: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        first, again = _start(model, cache), _start(model, cache, "--passes")
    seconds = {"with nothing kept": first.pop("seconds"), "again": again.pop("seconds")}
    return {"model": name, "seconds to the first token": seconds, "probe": first["probe"], "pass": again["pass"]}


def _start(model: Path, cache: str, *arguments: str) -> dict[str, Any]:
    """The child's words; `seconds` until it had a token. Kernels, digests and probes are kept in `cache` alone."""
    started = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sizes", str(model), *arguments], text=True, stdout=subprocess.PIPE,
        env=os.environ | {"XDG_CACHE_HOME": cache, KERNELS: cache},
    )  # fmt: skip
    assert child.stdout
    said: dict[str, Any] = json.loads(child.stdout.readline())
    said["seconds"] = round(time.perf_counter() - started, 1)
    rest = child.stdout.read()
    if child.wait():
        raise RuntimeError(f"the start of {model} ended with {child.returncode}")
    return said | (json.loads(rest) if rest else {})


def _random_model(name: str, folder: Path) -> Path:
    kind, config = SHAPES[name]
    torch.manual_seed(0)
    with torch.device("meta"):
        shapes = {name: each.shape for name, each in kind(config).named_parameters()}
    tensors = {
        name: torch.ones(shape, dtype=torch.bfloat16)
        if len(shape) == 1
        else torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    config.architectures = [kind.__name__]
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    for each in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(_TOKENIZER / each, folder)
    return folder


def _start_here(path: Path, with_passes: bool) -> None:
    model = load_model(path, load_target)
    core = EngineCore(
        model.target, model.drafters, model.tokenizer.stream, model.cost, EngineSettings(), time.perf_counter
    )  # fmt: skip
    made: list[Event] = []
    core.add(EngineRequest("0", tuple(model.tokenizer.encode(PROMPTS[0])), SamplingParams(max_tokens=1)), made.append)
    while not core.idle:
        core.step()
    report = model.profile.report
    print(json.dumps({"probe": {"passed": report.passed, "compared": report.compared}}), flush=True)
    if with_passes:
        assert isinstance(model.target, CpuTarget)
        print(json.dumps({"pass": passes(model.target)}))


if __name__ == "__main__":
    _start_here(Path(sys.argv[1]), "--passes" in sys.argv)
