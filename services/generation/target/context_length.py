"""How long a sequence may become on a server: the model's own context, or less of it."""

from __future__ import annotations

from dataclasses import replace

from services.generation.target.config import TargetConfig
from services.generation.target.errors import ConfigInvalid

DEFAULT_MOST = 8192  # tokens: a context of 131,072 would ask 16 GiB of cache for one sequence of a Llama of 8 billion


def bounded(config: TargetConfig, asked: int | None) -> TargetConfig:
    """The config with the context length to serve, tokens: `asked`, or the model's own up to DEFAULT_MOST.

    Raises ConfigInvalid where more is asked for than the model was made for.
    """
    own = config.context_length
    if asked is not None and not 1 <= asked <= own:
        raise ConfigInvalid(f"--context-length: {asked} tokens; this model takes at least 1 and at most {own}")
    return replace(config, context_length=min(own, DEFAULT_MOST) if asked is None else asked)


def explained(served: int, own: int, asked: int | None) -> str:
    """Which context is served and why, for the log."""
    if asked is not None:
        return f"context length {served} of the model's {own}, as --context-length says"
    if served < own:
        return f"context length {served} of the model's {own}; raise it with --context-length"
    return f"context length {served}, the model's own"
