"""Gemma 3 (Kamath et al. 2025), text: Gemma 2 with head norms instead of caps, and two rotations."""

from __future__ import annotations

from services.generation.target.families.family import Family

GEMMA3 = Family(
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    multimodal="Gemma3ForConditionalGeneration",
    gguf_name="gemma3",
    gguf_interleaved=False,
    qkv_bias=False,
    head_norms=True,
    windows=True,
    activation="gelu_pytorch_tanh",
    sandwich_norms=True,
    norms_around_one=True,
    scaled=("query_pre_attn_scalar", "final_logit_softcapping"),
    gguf_wide_queries=62,
    gguf_modules={
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
)
