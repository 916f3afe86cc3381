"""How long a sequence may get, and how many blocks the key/value cache has."""

from __future__ import annotations

from dataclasses import replace

from services.generation.target.blocks import BLOCK, blocks_for
from services.generation.target.config.config import TargetConfig
from services.generation.target.errors import ConfigInvalid

DEFAULT_MOST = 8192  # tokens: a context of 131,072 would ask 16 GiB of cache for one sequence of a Llama of 8 billion
DEFAULT_BYTES = 1 << 30
_FEATURE_SHARE = 8  # one part in so many of the bytes is for features kept with cached prefixes
_MOST_CONTEXTS = 64  # that a cache holds whose size nobody chose
_PROBED = 9  # blocks that the probe takes at start


def bounded(config: TargetConfig, asked: int | None) -> TargetConfig:
    """The config with the context length to serve, tokens: `asked`, or the model's own up to DEFAULT_MOST, and up to
    what LongRoPE was trained for first: a longer context turns the heads of short texts differently too.

    Raises ConfigInvalid where more is asked for than the model was made for.
    """
    own = config.context_length
    if asked is not None and not 1 <= asked <= own:
        raise ConfigInvalid(f"--context-length: {asked} tokens; this model takes at least 1 and at most {own}")
    most = min([DEFAULT_MOST, *(rotation.trained for rotation in config.rotations if rotation.long)])
    return replace(config, context_length=min(own, most) if asked is None else asked)


def explained(served: int, own: int, asked: int | None) -> str:
    """Which context is served and why, for the log."""
    if asked is not None:
        return f"context length {served} of the model's {own}, as --context-length says"
    if served < own:
        return f"context length {served} of the model's {own}; raise it with --context-length"
    return f"context length {served}, the model's own"


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
    sizes = [config.heads_of(layer) for layer in range(config.layers)]
    return 2 * element_bytes * BLOCK * sum(each.kv_heads * each.head_dim for each in sizes if each.source is None)


def feature_bytes(size: int | None) -> int:
    """Of `size` bytes of cache, what features may take that are kept for prefixes."""
    return (DEFAULT_BYTES if size is None else size) // _FEATURE_SHARE


def _for_blocks(size: int) -> int:
    return size - feature_bytes(size)
