"""Tiny models of Qwen3.5's families with an MTP block inside, as checkpoints are published."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from services.generation.drafting.mtp.block_weights import block_shapes
from services.generation.target.config.config import read_config
from tests.fakes.converted_gguf import convert
from tests.fakes.tiny_model import make_tiny_model

_STATES = {
    "layers": 2, "layer_types": ["linear_attention", "full_attention"], "head_dim": 16, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
_EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_5": {"architecture": "qwen3_5", "tie_word_embeddings": True, **_STATES},
    "qwen3_5_moe": {"architecture": "qwen3_5_moe", **_STATES, **_EXPERTS},
    "qwen3_next": {"architecture": "qwen3_next", **_STATES, **_EXPERTS},
}


def make_mtp_model(folder: Path, name: str = "qwen3_5", *, prefix: str = "mtp.", seed: int = 0, **choices: Any) -> Path:
    """A tiny model of `MODELS` with a random block of these tensors' prefix; `choices` override its configuration."""
    make_tiny_model(
        folder, **{"hidden": 32, "vocab": 320, "heads": 4, "kv_heads": 2, "seed": seed, **MODELS[name], **choices}
    )
    add_block(folder, random_block_tensors(folder, seed), prefix)
    return folder


def add_block(folder: Path, block: dict[str, torch.Tensor], prefix: str = "mtp.") -> None:
    """Add a block's tensors, named as after `mtp.`, to the model's file."""
    tensors = load_file(folder / "model.safetensors") | {f"{prefix}{name}": tensor for name, tensor in block.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def random_block_tensors(folder: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    """Tensors of a block for the model in `folder`, as its family publishes them; norms are drawn around 0."""
    base, generator = read_config(folder), torch.Generator().manual_seed(seed)
    found = {
        name.removeprefix("mtp."): torch.randn(shape, generator=generator) * (0.15 if len(shape) > 1 else 0.3)
        for name, shape in block_shapes(base).items()
    }
    return found if base.architecture == "qwen3_next" else _stacked(found)


def write_apart(
    folder: Path, model: Path, sidecar: Path, tokens: Sequence[int] = (), *, rows: Sequence[int] = (),
    part_tensors: int = 0,
) -> None:  # fmt: skip
    """Write the model of `folder` as GGUF without its block, and its sidecar: block, embeddings, output matrix.

    `tokens` (`d2t`): of the matrix's rows, if it has fewer than the vocabulary; `rows`: whose rows these really are.
    `part_tensors` above 0: of each part of the sidecar.
    """

    def without(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.startswith("blk.2.")]:
            del tensors[name]

    def alone(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.startswith("blk.") and not name.startswith("blk.2.")]:
            del tensors[name]
        if tokens:
            kind, values = tensors.get("output.weight", tensors["token_embd.weight"])
            tensors["output.weight"] = kind, values[np.array(rows or tokens) % len(values)]
            tensors["d2t"] = int(GGMLQuantizationType.I64), np.array(tokens, np.int64)

    counts = {"qwen35.block_count": 2, "qwen35.nextn_predict_layers": 0}
    convert(folder, model, change_metadata=lambda fields: fields.update(counts), change_tensors=without)
    convert(folder, sidecar, change_tensors=alone, part_tensors=part_tensors)


def _stacked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All experts as one tensor, of gate and up together and of down."""
    place = "layers.0.mlp.experts"
    count = sum(name.startswith(place) for name in tensors) // 3
    if not count:
        return tensors
    one = [[tensors[f"{place}.{n}.{part}_proj.weight"] for part in ("gate", "up", "down")] for n in range(count)]
    others = {name: tensor for name, tensor in tensors.items() if not name.startswith(place)}
    return others | {
        f"{place}.gate_up_proj": torch.stack([torch.cat([gate, up]) for gate, up, _ in one]),
        f"{place}.down_proj": torch.stack([down for *_, down in one]),
    }
