"""A tiny gpt-oss with its experts in MXFP4, as OpenAI publishes them in safetensors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from services.generation.target.arrays import Bytes

_KIND = GGMLQuantizationType.MXFP4


def as_published(directory: Path, quantised: Path, widened: Path) -> None:
    """From a directory with experts in plain numbers: `quantised` as OpenAI has it, and `widened`, with the same values
    in float32.
    """
    blocks, values = dict[str, NDArray[Any]](), dict[str, NDArray[Any]]()
    for name, tensor in load_file(directory / "model.safetensors").items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            rows = quantize(np.ascontiguousarray(tensor.swapaxes(1, 2)), _KIND)  # [experts, out, in]
            values[name] = np.ascontiguousarray(dequantize(rows, _KIND).swapaxes(1, 2))
            blocks[f"{name}_scales"], blocks[f"{name}_blocks"] = _apart(rows)
        else:
            blocks[name] = values[name] = tensor
    _write(directory, widened, values, {})
    _write(directory, quantised, blocks, {"quantization_config": {"quant_method": "mxfp4"}})


def _apart(rows: Bytes) -> tuple[Bytes, Bytes]:
    """Exponents, and values of which neighbours share a byte; in GGUF those that lie half a block apart do."""
    each = rows.reshape(*rows.shape[:-1], -1, 17)
    values = np.concatenate([each[..., 1:] & 15, each[..., 1:] >> 4], axis=-1)
    return np.ascontiguousarray(each[..., 0]), values[..., 0::2] | values[..., 1::2] << 4


def _write(source: Path, target: Path, tensors: dict[str, NDArray[Any]], more: dict[str, Any]) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    document = json.loads((target / "config.json").read_bytes())
    (target / "config.json").write_text(json.dumps(document | more))
