"""How many blocks of memory for keys and values a target gets: bytes against what a block takes."""

from __future__ import annotations

from services.generation.target.blocks import BLOCK, blocks_for
from services.generation.target.config import TargetConfig
from services.generation.target.errors import ConfigInvalid

DEFAULT_BYTES = 1 << 30
_FEATURE_SHARE = 8  # one part in so many of the bytes is for features kept with cached prefixes
_MOST_CONTEXTS = 64  # that a cache holds whose size nobody chose
_PROBED = 9  # blocks that the probe takes at start


def cache_blocks(config: TargetConfig, element_bytes: int, *, tokens: int | None, size: int | None) -> int:
    """Blocks for `tokens` tokens, or for `size` bytes without the part that `feature_bytes` is; with neither, for
    DEFAULT_BYTES, at least one whole context. An element of a key or value takes `element_bytes`.

    Raises ConfigInvalid where `size` cannot hold one sequence of the whole context.
    """
    block, context = block_bytes(config, element_bytes), max(blocks_for(config.context_length), _PROBED)
    if tokens is not None:
        return blocks_for(tokens)
    if size is None:
        return max(context, min(_for_blocks(DEFAULT_BYTES) // block, _MOST_CONTEXTS * context))
    if _for_blocks(size) < context * block:
        needed = context * block + (context * block - 1) // (_FEATURE_SHARE - 1)
        raise ConfigInvalid(
            f"--cache-bytes: {size} bytes cannot hold one sequence of {config.context_length} tokens; expected at "
            f"least {needed} ({-(-needed >> 20)} MiB), or a smaller --context-length"
        )
    return _for_blocks(size) // block


def block_bytes(config: TargetConfig, element_bytes: int) -> int:
    """Keys and values of BLOCK tokens in all layers."""
    return 2 * element_bytes * config.layers * config.kv_heads * config.head_dim * BLOCK


def feature_bytes(size: int | None) -> int:
    """Of `size` bytes of cache, what features may take that are kept for prefixes."""
    return (DEFAULT_BYTES if size is None else size) // _FEATURE_SHARE


def _for_blocks(size: int) -> int:
    return size - feature_bytes(size)
