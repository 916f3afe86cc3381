"""Phi-3 (Abdin et al. 2024), Phi-3.5 and Phi-4: fused modules, LongRoPE, and heads that turn in part."""

from __future__ import annotations

from services.generation.target.families.family import Family

PHI3 = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    gguf_name="phi3",
    gguf_interleaved=False,
    qkv_bias=False,
    head_norms=False,
    windows=True,
    partial_rotation=True,
    fused=True,
    gguf_modules={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
)
