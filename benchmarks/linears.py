"""Linear layers alone: the canonical ones in each storage beside torch's, on the shapes of three public models."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from gguf.quants import quantize
from numpy.typing import NDArray
from rich.progress import track

from services.generation.target.files.stored_tensor import LAYOUTS, StoredTensor
from services.generation.target.kernels import compilation
from services.generation.target.kernels.linear import linear
from services.generation.target.kernels.machine import cpus
from services.generation.target.kernels.records import PASS
from services.generation.target.kernels.storages import PANEL
from services.generation.target.program.buffers import on_huge_pages
from services.generation.target.program.matrices import linear_record, matrix_of
from services.generation.target.program.team import team

Float32 = NDArray[np.float32]

ROWS = (1, 2, 4, 8, 16, 32, 128, 512)
STORAGES = ("float32", "bfloat16", "q8_0", "q4_0", "q4_1", "q4_k", "q5_k", "q6_k")
INT8 = ("q8_0 int8", "q4_0 int8", "q4_1 int8")
PEERS = ("torch float32", "torch bfloat16")
_ROUNDS = 7
_ENOUGH = 300 << 20  # bytes of weights that no cache holds: fewer layers of a large model are measured, and scaled up


@dataclass(frozen=True, slots=True)
class Model:
    """Linear layers by (outputs, inputs): those of one decoder layer, and the output layer."""

    name: str
    layers: int
    shapes: tuple[tuple[int, int], ...]
    head: tuple[int, int]

    @property
    def weights(self) -> int:
        return self.layers * sum(n * k for n, k in self.shapes) + self.head[0] * self.head[1]


MODELS = (
    Model("SmolLM2-135M", 30, ((960, 576), (576, 576), (3072, 576), (576, 1536)), (49152, 576)),
    Model("Qwen2.5-0.5B", 24, ((1152, 896), (896, 896), (9728, 896), (896, 4864)), (151936, 896)),
    Model("Llama-3.2-1B", 16, ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)), (128256, 2048)),
)


def measure() -> list[dict[str, Any]]:
    """A row for each model and contender: milliseconds of all linear layers at each number of rows.

    Minima of interleaved rounds; `limit` is what reading the weights takes at the bandwidth that a sum over them has
    in the same run; `over one row` and `over the limit` are ratios. One call of the team runs all layers.
    """
    found = []
    for model in track(MODELS, "linears"):
        bandwidth = read_bandwidth()
        for name in (*STORAGES, *INT8, *PEERS):
            if name.endswith("_k") and any(k % 256 for _, k in (*model.shapes, model.head)):
                continue
            contender = _Torch(model, name) if name in PEERS else _Canonical(model, name)
            milliseconds = _times(contender)
            limit = 1e3 * contender.bytes * contender.scale / bandwidth
            found.append(
                {
                    "model": model.name,
                    "contender": name,
                    "megabytes": round(contender.bytes * contender.scale / 1e6, 1),
                    "limit": round(limit, 2),
                    "milliseconds": {rows: round(ms, 2) for rows, ms in milliseconds.items()},
                    "over the limit": round(milliseconds[1] / limit, 2),
                    "over one row": {rows: round(ms / milliseconds[1], 2) for rows, ms in milliseconds.items()},
                }
            )
    return found


def _times(contender: _Canonical | _Torch) -> dict[int, float]:
    best = dict.fromkeys(ROWS, float("inf"))
    for _ in range(_ROUNDS):
        for rows in ROWS:
            start = time.perf_counter()
            contender.run(rows)
            best[rows] = min(best[rows], 1e3 * (time.perf_counter() - start))
    return {rows: seconds * contender.scale for rows, seconds in best.items()}


def _some_layers(model: Model, bytes_each: float) -> int:
    """Layers that are measured."""
    one = bytes_each * sum(n * k for n, k in model.shapes)
    return min(model.layers, max(2, int(-(-_ENOUGH // one))))


class _Canonical:
    """All layers as one program. The output layer counts once, so it is measured once and weighs as the others do."""

    def __init__(self, model: Model, name: str) -> None:
        storage, _, arithmetic = name.partition(" ")
        self._arithmetic = arithmetic or "float32"
        rng = np.random.default_rng(0)
        layout = LAYOUTS[storage]
        layers = _some_layers(model, layout.row_bytes(256) / 256)
        shapes = [*(shape for _ in range(layers) for shape in model.shapes), model.head]
        made: dict[tuple[int, int], StoredTensor] = {}
        for shape in shapes:
            if shape not in made:
                made[shape] = _stored(storage, rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02))
        self._matrices = [matrix_of(made[shape]) for shape in shapes]
        self.bytes = sum(matrix.weights.panels.nbytes for matrix in self._matrices)
        self.scale = model.weights / sum(n * k for n, k in shapes)
        compilation.compile_ahead([compilation.linear_module(storage, self._arithmetic)])
        self._lines = {rows: self._program(rows, rng) for rows in ROWS}

    def _program(self, rows: int, rng: np.random.Generator) -> tuple[Any, ...]:
        xs = {
            m.weights.inputs: rng.standard_normal((rows, m.weights.padded_inputs), dtype=np.float32)
            for m in self._matrices
        }
        ys = {m.panels: np.empty((rows, m.panels * PANEL), np.float32) for m in self._matrices}
        size = max(linear.scratch_bytes(m.weights.inputs) for m in self._matrices)
        own = {"scratch": on_huge_pages(size * cpus()), "scratch_size": size}
        records = [
            linear_record(m, xs[m.weights.inputs], ys[m.panels], "rows", 1, own, True, self._arithmetic)
            for m in self._matrices
        ]
        program, words = np.stack(records), np.zeros(len(PASS), np.int64)
        for name, value in (("program", program.ctypes.data), ("operations", len(records)), ("rows", rows)):
            words[PASS.index(name)] = value
        return words, program, xs, ys, own

    def run(self, rows: int) -> None:
        team().run(self._lines[rows][0], cpus(), wait=True)


def _stored(storage: str, weight: Float32) -> StoredTensor:
    layout = LAYOUTS[storage]
    if storage == "float32":
        data = weight.view(np.uint8)
    elif storage in ("q4_k", "q5_k", "q6_k"):  # gguf cannot make these; for a timing any blocks do, with scales of 1
        data = np.random.default_rng(0).integers(0, 256, (len(weight), layout.row_bytes(weight.shape[1])), np.uint8)
        blocks = data.reshape(-1, layout.size)
        blocks[:, layout.halves_at : layout.halves_at + layout.halves] = np.tile(
            np.ones(layout.halves // 2, np.float16).view(np.uint8), (len(blocks), 1)
        )
    else:
        data = quantize(weight, layout.ggml)
    return StoredTensor("random", storage, weight.shape, data)


class _Torch:
    """The same by torch's own products (MKL's for float32, oneDNN's for bfloat16), a call a layer."""

    def __init__(self, model: Model, name: str) -> None:
        self._dtype = torch.float32 if name.endswith("float32") else torch.bfloat16
        layers = _some_layers(model, self._dtype.itemsize)
        shapes = [*(shape for _ in range(layers) for shape in model.shapes), model.head]
        self._weights = [(torch.randn(shape) * 0.02).to(self._dtype) for shape in shapes]
        self.bytes = sum(weight.nbytes for weight in self._weights)
        self.scale = model.weights / sum(n * k for n, k in shapes)
        inputs = {weight.shape[1] for weight in self._weights}
        self._xs = {rows: {k: torch.randn(rows, k).to(self._dtype) for k in inputs} for rows in ROWS}

    @torch.inference_mode()
    def run(self, rows: int) -> None:
        xs = self._xs[rows]
        for weight in self._weights:
            torch.nn.functional.linear(xs[weight.shape[1]], weight)


def read_bandwidth(reads: int = 20) -> float:
    """Bytes a second at which all CPUs together read memory, the most of some reads."""
    memory = torch.from_numpy(on_huge_pages(512 << 20).view(np.float32))
    memory.fill_(1.0)

    def once() -> float:
        start = time.perf_counter()
        memory.sum()
        return memory.nbytes / (time.perf_counter() - start)

    return max(islice(iter(once, None), reads))
