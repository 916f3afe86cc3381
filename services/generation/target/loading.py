"""From a model directory to a target that can run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from services.generation.target.adapters.adapter import Adapter, read_adapter
from services.generation.target.canonical.program.exchange import Peers
from services.generation.target.config.capacity import bounded, cache_blocks
from services.generation.target.config.config import TargetConfig, read_config
from services.generation.target.cpu import CpuTarget
from services.generation.target.errors import TargetError
from services.generation.target.folders.identity import base_cid, tokenizer_cid
from services.generation.target.weights.expected import checked_weights

if TYPE_CHECKING:
    from services.generation.target.fixed_shape.fixed_shape_target import FixedShapeTarget

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


def load_target(
    directory: Path,
    *,
    context_length: int | None = None,
    cache_tokens: int | None = None,
    cache_bytes: int | None = None,
    adapters: Mapping[str, Path] | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    cache_dtype: str | None = None,
    arithmetic: str | None = None,
    threads: int | None = None,
    peers: Peers | None = None,
) -> CpuTarget | FixedShapeTarget:
    """Load a transformers model directory (config.json, safetensors, tokenizer.json).

    Args:
        directory: the model.
        context_length: tokens that a sequence may have; by default the model's own, at most 8,192.
        cache_tokens: tokens that the key/value cache holds over all sequences, one that needs not hold a context.
        cache_bytes: the same by its size, an eighth of it for features (`capacity`); by default 1 GiB, at least one
            whole context and at most 64 of them. Memory on the CPU is touched only as it is used.
        adapters: LoRA adapters in peft's layout, directories by name.
        device: `cpu`, `cuda` or `cuda:N`.
        dtype: what CUDA computes in, `float32` or `bfloat16` (the default); the CPU computes in float32.
        cache_dtype: what the CPU keeps keys and values in, `float32` (the default) or `bfloat16`; CUDA in `dtype`.
        arithmetic: of linear layers with quantised weights on the CPU, `float32` (the default) or `int8`.
        threads: of a pass on the CPU; by default as many as there are CPUs.
        peers: on the CPU, the ranks that share the model; this one loads its part.

    Raises:
        TargetError: see `services.generation.target.errors`; the message names the file and the field.
    """
    kind = device.partition(":")[0]
    dtype = dtype or ("float32" if kind == "cpu" else "bfloat16")
    _check_device(kind, device, dtype)
    if arithmetic == "int8" and kind != "cpu":
        raise TargetError(f"arithmetic: int8 is not supported on {kind}; use device cpu, or leave arithmetic out")
    config = bounded(read_config(directory), context_length)
    cached = (cache_dtype or "float32") if kind == "cpu" else dtype
    blocks = cache_blocks(config, _ITEM_BYTES[cached], tokens=cache_tokens, size=cache_bytes)
    cids = base_cid(directory), tokenizer_cid(directory)
    loaded = _read_adapters(adapters or {}, config, directory, cids[0])
    if kind == "cpu":
        weights = checked_weights(directory, config)
        return CpuTarget(
            config, weights, blocks, *cids, loaded, threads=threads, cache_dtype=cached,
            arithmetic=arithmetic or "float32", peers=peers,
        )  # fmt: skip
    import torch

    from services.generation.target.fixed_shape.fixed_shape_target import FixedShapeTarget
    from services.generation.target.weights.checkpoint import open_checkpoint

    torch.set_num_threads(1)  # the GPU computes; threads here would only spin
    with open_checkpoint(directory, config) as checkpoint:
        return FixedShapeTarget(config, checkpoint, blocks, *cids, loaded, device=device, dtype=getattr(torch, dtype))


def _read_adapters(
    adapters: Mapping[str, Path], base: TargetConfig, base_directory: Path, base_cid: str
) -> list[Adapter]:
    read = []
    for name, directory in adapters.items():
        try:
            read.append(read_adapter(name, directory, base, base_directory, base_cid))
        except TargetError as error:
            raise type(error)(f"adapter {name}: {error}") from error
    return read


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _check_device(kind: str, device: str, dtype: str) -> None:
    if kind not in ("cpu", "cuda"):
        raise TargetError(f"device: {device!r} is not supported; supported: cpu, cuda, cuda:N")
    if kind == "cuda" and not _has_cuda():
        raise TargetError("device: no CUDA device is available to torch here; use cpu")
    if dtype not in _ITEM_BYTES or (kind == "cpu" and dtype != "float32"):
        raise TargetError(f"dtype: {dtype!r} is not supported on {kind}; supported: float32, on cuda also bfloat16")
