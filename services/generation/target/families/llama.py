"""Llama (Touvron et al. 2023), and all that publish under its name: no norm of heads, no window."""

from __future__ import annotations

from services.generation.target.families.family import Family

LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    gguf_name="llama",
    gguf_interleaved=True,
    qkv_bias=False,
    head_norms=False,
    windows=False,
)
