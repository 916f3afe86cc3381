"""A LoRA adapter (Hu et al. 2021), read into memory: for each adapted module a product of two thin matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.generation.target.adapters.config import FUSED_MODULES, MODULES, AdapterConfig, read_adapter_config
from services.generation.target.adapters.identity import AdapterIdentity, adapter_cid, base_names
from services.generation.target.adapters.weights import open_adapter_weights
from services.generation.target.config.config import TargetConfig
from services.generation.target.errors import AdapterInvalid
from services.generation.target.weights.expected import expected_shapes

_CID = "cidv1:"


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """y += scale * ((x down^T) up^T); down [rank, in], up [out, rank], float32."""

    down: NDArray[np.float32]
    up: NDArray[np.float32]
    scale: float

    @property
    def rank(self) -> int:
        return len(self.down)


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """`updates` by layer and module of the layer, for example (0, "self_attn.q_proj")."""

    identity: AdapterIdentity
    updates: Mapping[tuple[int, str], LowRank]


def read_adapter(name: str, directory: Path, base: TargetConfig, base_directory: Path, base_cid: str) -> Adapter:
    """Read an adapter in peft's layout (adapter_config.json, adapter_model.safetensors) for a given base.

    Raises:
        TargetError: ModelNotFound, AdapterUnsupported or AdapterInvalid; the message names adapter, file and field.
    """
    config = read_adapter_config(directory, base.layers, _modules(base))
    _check_base(config, base_directory, base_cid)
    there = expected_shapes(base)  # not every layer of Gemma 4 has every module
    config = replace(config, updates=tuple(each for each in config.updates if f"{each.module}.weight" in there))
    weights = open_adapter_weights(directory, config, base)
    updates = {
        (update.layer, update.module.removeprefix(f"model.layers.{update.layer}.")): LowRank(
            weights.read(update, "lora_A"), weights.read(update, "lora_B"), update.scale
        )
        for update in config.updates
    }
    return Adapter(AdapterIdentity(name, adapter_cid(directory)), updates)


def _modules(base: TargetConfig) -> tuple[str, ...]:
    """That can be adapted; experts cannot."""
    modules = FUSED_MODULES if base.fused else MODULES
    return tuple(module for module in modules if not (base.experts and module.startswith("mlp.")))


def _check_base(config: AdapterConfig, directory: Path, base_cid: str) -> None:
    """A base_cid in `revision` decides; else the name has to be one of the base's, where the adapter gives one."""
    revision = config.base_revision
    if revision is not None and revision.startswith(_CID):
        if revision != base_cid:
            raise AdapterInvalid(f"revision: the adapter is for the base {revision}, and {base_cid} is served")
        return
    known = base_names(directory)
    if config.base_name is not None and config.base_name.rstrip("/").rpartition("/")[2] not in known:
        raise AdapterInvalid(
            f"base_model_name_or_path: the adapter is for {config.base_name!r}, and {' or '.join(sorted(known))} is "
            "served; where that is the same model under another name, write it there, or its base_cid into revision"
        )
