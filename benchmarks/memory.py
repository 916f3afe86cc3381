"""Memory of a loaded target: resident growth over loading and decoding, against its published weights and its cache."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.machine import resident
from services.generation.target.cpu import load_target
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target
from services.generation.target.weights import open_weights

_CACHE_TOKENS = 1024
_CHUNK = 50  # prompt tokens of a pass


def measure(model: Path) -> dict[str, Any]:
    """In a process of its own: what one more model adds to a running process, and that process as a whole."""
    command = [sys.executable, "-m", "benchmarks.memory", str(model)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _measure_here(model: Path) -> dict[str, Any]:
    """A tiny model goes first: what torch, transformers and compiled kernels take is there once, for any model."""
    with tempfile.TemporaryDirectory() as folder:
        _fill(load_target(_tiny_model(Path(folder)), cache_tokens=_CACHE_TOKENS))
    before = _resident()
    target = load_target(model, cache_tokens=_CACHE_TOKENS)
    _fill(target)
    after = _resident()
    config = target.config
    published = open_weights(model)
    weights = sum(published.tensor(name).data.nbytes for name in published.names())
    cache = 2 * 4 * _CACHE_TOKENS * config.layers * config.kv_heads * config.head_dim
    return {
        "growth_bytes": after - before,
        "published_weights_bytes": weights,
        "cache_bytes": cache,
        "growth_over_weights_and_cache": round((after - before) / (weights + cache), 3),
        "process_bytes": after,
    }


def _fill(target: Target) -> None:
    """Decode until the whole cache has been written."""
    tokens = min(_CACHE_TOKENS, target.config.context_length)
    table: list[int] = []
    target.blocks.extend(table, tokens)
    for at in range(0, tokens, _CHUNK):
        rows = RowsBuilder()
        rows.add_chunk(table, at, list(range(min(_CHUNK, tokens - at))), want_last=True)
        target.forward(rows.build())
    target.blocks.release(table)


def _tiny_model(directory: Path) -> Path:
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=_CACHE_TOKENS,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def _resident() -> int:
    """Resident bytes of this process, after returning what the allocator holds free (Linux with glibc)."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return resident()


if __name__ == "__main__":
    print(json.dumps(_measure_here(Path(sys.argv[1]))))
