"""Gemma 2 (Riviere et al. 2024): norms before and after, windows in every second layer, capped scores and logits."""

from __future__ import annotations

from services.generation.target.families.family import Family

GEMMA2 = Family(
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    gguf_name="gemma2",
    gguf_interleaved=False,
    qkv_bias=False,
    head_norms=False,
    windows=True,
    activation="gelu_pytorch_tanh",
    sandwich_norms=True,
    norms_around_one=True,
    scaled=("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"),
    gguf_wide_queries=46,
    gguf_modules={
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
)
