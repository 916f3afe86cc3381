"""Memory of a loaded target: resident growth over loading and decoding, against its float32 weights and its cache."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_CHILD = """
import gc, json, sys
from pathlib import Path
from benchmarks.memory import resident
import torch, transformers
from services.generation.target import attention, kernels
from services.generation.target.checkpoint import expected_shapes
from services.generation.target.config import read_config
from services.generation.target.loading import load_target
from services.generation.target.rows import RowsBuilder
from math import prod
directory = Path(sys.argv[1])
config = read_config(directory)
torch.nn.functional.linear(torch.ones(256, 256), torch.ones(256, 256))
before = resident()
target = load_target(directory, cache_tokens=1024)
tokens = min(1000, config.context_length)
table = []
target.blocks.extend(table, tokens)
for at in range(0, tokens, 50):
    rows = RowsBuilder()
    rows.add_chunk(table, at, list(range(min(50, tokens - at))), want_last=True)
    target.forward(rows.build())
gc.collect()
after = resident()
weights = 4 * sum(prod(shape) for shape in expected_shapes(config).values())
cache = 2 * 4 * 1024 * config.layers * config.kv_heads * config.head_dim
print(json.dumps({"growth_bytes": after - before, "weights_bytes": weights, "cache_bytes": cache,
                  "ratio": round((after - before) / (weights + cache), 3)}))
"""


def resident() -> int:
    """Resident bytes of this process, after returning what the allocator holds free (Linux)."""
    import ctypes

    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def measure(model: Path) -> dict[str, Any]:
    """In a process of its own: bytes and their ratio to float32 weights plus cache."""
    command = [sys.executable, "-c", _CHILD, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
