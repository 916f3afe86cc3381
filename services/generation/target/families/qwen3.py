"""Qwen3 (Yang et al. 2025): each head of queries and keys is normalised before its rotation."""

from __future__ import annotations

from services.generation.target.families.family import Family

QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    gguf_name="qwen3",
    gguf_interleaved=False,
    qkv_bias=False,
    head_norms=True,
    windows=True,
)
