"""The target of CUDA on torch's CPU device, for tests without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from services.generation.target.adapters.adapter import read_adapter
from services.generation.target.config.config import read_config
from services.generation.target.fixed_shape.fixed_shape_target import FixedShapeTarget
from services.generation.target.folders.identity import base_cid
from services.generation.target.weights.checkpoint import open_checkpoint


def fixed_shape_target(
    directory: Path, adapters: Mapping[str, Path] | None = None, dtype: torch.dtype = torch.float32
) -> FixedShapeTarget:
    """With row counts 16 and 64, of which those remain that agree here."""
    config, identity = read_config(directory), base_cid(directory)
    loaded = [read_adapter(name, path, config, directory, identity) for name, path in (adapters or {}).items()]
    with open_checkpoint(directory, config) as checkpoint:
        return FixedShapeTarget(
            config, checkpoint, 16, identity, "", loaded, device="cpu", dtype=dtype, row_counts=(16, 64)
        )
