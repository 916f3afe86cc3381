"""GGUF's names of tensors and those of transformers' models."""

from __future__ import annotations

import re
from collections.abc import Mapping

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,8})\.([a-z_0-9]+)\.(weight|bias|scale)", re.ASCII)

ROPE_FACTORS = "rope_freqs.weight"
"""The divisor of each rotary frequency (Llama 3); read with the configuration, not with the weights."""
ROPE_SHORT, ROPE_LONG = "rope_factors_short.weight", "rope_factors_long.weight"
"""The same of LongRoPE, for a short and for a long context."""


def transformers_name(name: str, modules: Mapping[str, str]) -> str:
    """The name in transformers' model; a name that is not known stays as it is. `modules` are a family's own."""
    if match := _BLOCK.fullmatch(name):
        layer, module, kind = match.groups()
        if kind == "scale":  # a vector of its own
            module, kind = f"{module}.scale", "weight"
        if found := modules.get(module) or _INSIDE.get(module):
            return f"model.layers.{layer}.{found}.{kind}"
    return _OUTSIDE.get(name, name)
