"""From a model directory to a target that can run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from services.generation.target.adapters import Adapter, read_adapter
from services.generation.target.config.capacity import bounded, cache_blocks
from services.generation.target.config.config import TargetConfig, read_config
from services.generation.target.cpu import CpuTarget
from services.generation.target.errors import TargetError
from services.generation.target.folders.identity import base_cid, tokenizer_cid
from services.generation.target.weights import checked_weights

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


def load_target(
    directory: Path,
    *,
    context_length: int | None = None,
    cache_tokens: int | None = None,
    cache_bytes: int | None = None,
    adapters: Mapping[str, Path] | None = None,
    cache_dtype: str | None = None,
    arithmetic: str | None = None,
    threads: int | None = None,
) -> CpuTarget:
    """Load a transformers model directory (config.json, safetensors, tokenizer.json).

    Args:
        directory: the model.
        context_length: tokens that a sequence may have; by default the model's own, at most 8,192.
        cache_tokens: tokens that the key/value cache holds over all sequences, one that needs not hold a context.
        cache_bytes: the same by its size, an eighth of it for features (`capacity`); by default 1 GiB, at least one
            whole context and at most 64 of them. Memory is touched only as it is used.
        adapters: LoRA adapters in peft's layout, directories by name.
        cache_dtype: what keys and values are kept in, `float32` (the default) or `bfloat16`.
        arithmetic: of linear layers with quantised weights, `float32` (the default) or `int8`.
        threads: of a pass; by default as many as there are CPUs.

    Raises:
        TargetError: see `services.generation.target.errors`; the message names the file and the field.
    """
    config = bounded(read_config(directory), context_length)
    cached = cache_dtype or "float32"
    blocks = cache_blocks(config, _ITEM_BYTES[cached], tokens=cache_tokens, size=cache_bytes)
    cids = base_cid(directory), tokenizer_cid(directory)
    loaded = _read_adapters(adapters or {}, config, directory, cids[0])
    return CpuTarget(
        config, checked_weights(directory, config), blocks, *cids, loaded, threads=threads, cache_dtype=cached,
        arithmetic=arithmetic or "float32",
    )  # fmt: skip


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
