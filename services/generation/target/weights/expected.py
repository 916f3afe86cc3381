"""The tensors that a configuration calls for, and whether a model's weights are those."""

from __future__ import annotations

from services.generation.target.config import TargetConfig
from services.generation.target.errors import WeightsInvalid
from services.generation.target.weights.gguf_names import ROPE_FACTORS
from services.generation.target.weights.weights import Weights

_SHOWN = 4  # names in a message


def expected_shapes(config: TargetConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that the canonical pass reads; linear weights are [out, in]."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden, config.attention_bias),
        "self_attn.k_proj": (keys, hidden, config.attention_bias),
        "self_attn.v_proj": (keys, hidden, config.attention_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        if config.head_norms:
            shapes[prefix + "self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[prefix + "self_attn.k_norm.weight"] = (config.head_dim,)
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
    return shapes


def check_weights(weights: Weights, config: TargetConfig) -> None:
    """Hold names, shapes and storages against the configuration, before a weight is read.

    Raises:
        WeightsInvalid: a tensor is missing, unknown, or of another shape or storage.
    """
    expected, found = expected_shapes(config), weights.names()
    missing = sorted(expected.keys() - found)
    if missing:
        raise WeightsInvalid(f"{weights.path}: {_listing(missing)} missing, which the configuration calls for")
    unknown = sorted(name for name in found - expected.keys() if not _meant_for_others(name, config))
    if unknown:
        raise WeightsInvalid(
            f"{weights.path}: {_listing(unknown)} not known to this architecture; does the configuration fit?"
        )
    for name, shape in expected.items():
        if weights.shape(name) != shape:
            raise WeightsInvalid(
                f"{weights.path}: {name} has shape {list(weights.shape(name))}, by the configuration {list(shape)}"
            )
        weights.storage(name)  # raises where it is not supported


def _meant_for_others(name: str, config: TargetConfig) -> bool:
    """Rotary frequencies are computed or read with the configuration; a tied head repeats the embeddings."""
    if name == "lm_head.weight":
        return config.tied_embeddings
    return name == ROPE_FACTORS or name.endswith("rotary_emb.inv_freq")


def _listing(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
