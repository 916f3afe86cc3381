"""Mistral (Jiang et al. 2023): Llama with a sliding window; its GGUF files call it a llama."""

from __future__ import annotations

from services.generation.target.families.family import Family

MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    gguf_name="llama",
    gguf_interleaved=True,
    qkv_bias=False,
    head_norms=False,
    windows=True,
)
