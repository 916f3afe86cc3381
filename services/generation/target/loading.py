"""From a model directory to a target that can run."""

from __future__ import annotations

from pathlib import Path

from services.generation.target.blocks import blocks_for
from services.generation.target.checkpoint import open_checkpoint
from services.generation.target.config import TargetConfig, read_config
from services.generation.target.cpu import CpuTarget
from services.generation.target.identity import base_cid, tokenizer_cid
from services.generation.target.kernels import BLOCK

_DEFAULT_CACHE_BYTES = 1 << 30


def load_target(directory: Path, *, cache_tokens: int | None = None) -> CpuTarget:
    """Load a transformers model directory (config.json, safetensors, tokenizer.json) for the CPU.

    Args:
        directory: the model.
        cache_tokens: tokens that the key/value cache holds over all sequences; by default as many as 1 GiB holds, at
            least one whole context and at most 64 of them. Memory is touched only as it is used.

    Raises:
        TargetError: see `services.generation.target.errors`; the message names the file and the field.
    """
    config = read_config(directory)
    blocks = blocks_for(cache_tokens) if cache_tokens else _default_blocks(config)
    with open_checkpoint(directory, config) as checkpoint:
        return CpuTarget(config, checkpoint, blocks, base_cid(directory), tokenizer_cid(directory))


def _default_blocks(config: TargetConfig) -> int:
    block_bytes = 2 * 4 * config.layers * config.kv_heads * config.head_dim * BLOCK
    context = blocks_for(config.context_length)
    return max(context, min(_DEFAULT_CACHE_BYTES // block_bytes, 64 * context))
