"""Qwen2 and Qwen2.5 (Yang et al. 2024): biases on queries, keys and values."""

from __future__ import annotations

from services.generation.target.families.family import Family

QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    gguf_name="qwen2",
    gguf_interleaved=False,
    qkv_bias=True,
    head_norms=False,
    windows=True,
)
