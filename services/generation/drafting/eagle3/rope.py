"""RoPE of a head, by the member `rope_parameters` of its config."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig

from services.generation.drafting.eagle3.config import HeadConfig, HeadConfigInvalid
from services.generation.target.config.rope import Rotation, rotation_of


def rotation_of_head(config: HeadConfig) -> Rotation:
    """Returns inverse frequencies [head_dim / 2].

    Raises:
        HeadConfigInvalid: `rope_parameters` are of no kind that is known.
    """
    members: dict[str, Any] = {
        "hidden_size": config.heads * config.head_dim,
        "num_attention_heads": config.heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.trained_length,
        "rope_parameters": dict(config.rope),
    }
    try:
        parsed = LlamaConfig(**members)
        return rotation_of(dict(parsed.rope_parameters or {}), config.head_dim, config.trained_length)
    except Exception as error:  # of many kinds, each about this member
        raise HeadConfigInvalid(f"rope_parameters {config.rope}: {error}") from error
