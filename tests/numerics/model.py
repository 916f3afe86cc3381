"""`model.json`: a whole model with its weights, a text, and the logits of every position."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from services.generation.target.adapters import Adapter, AdapterIdentity, LowRank
from services.generation.target.arrays import Float32
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.rope import Rotation
from services.generation.target.cpu import CpuTarget
from services.generation.target.files.stored_tensor import StoredTensor
from tests.fakes.rows import tree_rows
from tests.numerics.arithmetic import assert_same_bits
from tests.numerics.reference_model import ReferenceModel
from tests.numerics.vectors import array, tensor_of, values_of, weights


@dataclass(frozen=True, slots=True)
class WrittenWeights:
    """`Weights` of tensors at hand."""

    tensors: Mapping[str, StoredTensor]
    path: Path = Path("model.json")

    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def storage(self, name: str) -> str:
        return self.tensors[name].storage

    def tensor(self, name: str) -> StoredTensor:
        return self.tensors[name]


@dataclass(frozen=True, slots=True)
class Model:
    config: TargetConfig
    weights: WrittenWeights
    adapter: Adapter

    @classmethod
    def of_json(cls, written: Mapping[str, Any]) -> Model:
        members = {k: tuple(v) if isinstance(v, list) else v for k, v in written["config"].items()}
        turns = [{k: tuple(v) if isinstance(v, list) else v for k, v in turn.items()} for turn in members["rotations"]]
        members["rotations"] = tuple(Rotation(**turn) for turn in turns)
        tensors = {name: tensor_of(name, tensor) for name, tensor in written["weights"].items()}
        updates = {
            (update["layer"], update["module"]): LowRank(
                *(values_of(update[part]) for part in ("down", "up")), update["scale"]
            )
            for update in written["adapter"]
        }
        adapter = Adapter(AdapterIdentity("adapter", ""), updates)
        return cls(TargetConfig(**members), WrittenWeights(tensors), adapter)

    def to_json(self) -> dict[str, Any]:
        updates = [
            {
                "layer": layer, "module": module, "down": array(update.down), "up": array(update.up),
                "scale": update.scale,
            }
            for (layer, module), update in self.adapter.updates.items()
        ]  # fmt: skip
        tensors = {name: weights(tensor) for name, tensor in self.weights.tensors.items()}
        return {"config": asdict(self.config), "weights": tensors, "adapter": updates}


Forward = Callable[[Model, Sequence[int], bool, str], Float32]
"""Logits [tokens, vocabulary] of a model's tokens, with its adapter or without, and the form of the cache."""


def by_reference(model: Model, tokens: Sequence[int], adapted: bool, cache_dtype: str) -> Float32:
    adapter = model.adapter if adapted else None
    return ReferenceModel(model.config, model.weights, adapter, cache_dtype=cache_dtype).forward(tokens).logits


def by_kernels(
    model: Model,
    tokens: Sequence[int],
    adapted: bool,
    cache_dtype: str,
    prepare: Callable[[CpuTarget], None] = lambda target: None,
) -> Float32:
    """Logits of two passes, the first of a few rows. `prepare` may replace the execution of a target's passes."""
    adapters = [model.adapter] if adapted else []
    target = CpuTarget(model.config, model.weights, 4, "", "", adapters, cache_dtype=cache_dtype, threads=1)
    prepare(target)
    table: list[int] = []
    target.blocks.extend(table, len(tokens))
    logits = []
    for start, end in ((0, 5), (5, len(tokens))):
        rows = tree_rows(table, start, tokens[start:end], adapter=0 if adapted else -1)
        logits.append(target.forward(rows).logits.copy())
    return np.concatenate(logits)


def digest(logits: Float32) -> str:
    """SHA-256 of the little-endian bytes, row after row."""
    return hashlib.sha256(np.ascontiguousarray(logits, "<f4").tobytes()).hexdigest()


def check_model(written: Mapping[str, Any], forward: Forward) -> None:
    model = Model.of_json(written)
    for case in written["cases"]:
        logits = forward(model, written["tokens"], case["adapted"], case["cache_dtype"])
        for row, expected in case["logits"].items():
            assert_same_bits(logits[int(row)], values_of(expected))
        assert digest(logits) == case["sha256"]
