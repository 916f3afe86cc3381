"""A LoRA adapter with random weights in peft's layout, for a tiny model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from services.generation.target.config.config import read_config
from services.generation.target.weights import expected_shapes

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_tiny_adapter(
    directory: Path,
    base: Path,
    *,
    seed: int = 0,
    rank: int = 4,
    modules: Sequence[str] = MODULES,
    ranks: Mapping[str, int] | None = None,
    layers: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Write adapter_config.json and adapter_model.safetensors for the model in `base`; returns `directory`.

    `ranks` are other ranks by module (peft's rank_pattern), `layers` the decoder layers that are adapted, all by
    default. The weights are drawn wide enough to change the greedy output. `config` overrides members of the file.
    """
    generator = torch.Generator().manual_seed(seed)
    document = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.1,
        "target_modules": list(modules),
        "rank_pattern": dict(ranks or {}),
        "layers_to_transform": None if layers is None else list(layers),
        "bias": "none",
        "inference_mode": True,
    }
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in expected_shapes(read_config(base)).items():
        module = name.removesuffix(".weight").rpartition(".")[2]
        if module in modules and (layers is None or int(name.split(".")[2]) in layers):
            r, prefix = (ranks or {}).get(module, rank), "base_model.model." + name.removesuffix("weight")
            tensors[prefix + "lora_A.weight"] = 0.2 * torch.randn(r, shape[1], generator=generator)
            tensors[prefix + "lora_B.weight"] = 0.2 * torch.randn(shape[0], r, generator=generator)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(document | config))
    save_file({n: t.to(dtype).contiguous() for n, t in tensors.items()}, directory / "adapter_model.safetensors")
    return directory
