"""SmolLM3 (Bakouch et al. 2025): Llama in which every fourth layer has no rotary position embeddings."""

from __future__ import annotations

from services.generation.target.families.family import Family

SMOLLM3 = Family(
    name="smollm3",
    architecture="SmolLM3ForCausalLM",
    gguf_name="smollm3",
    gguf_interleaved=True,
    qkv_bias=False,
    head_norms=False,
    windows=True,
    unrotated_layers=True,
)
