"""Gemma 4 (Google 2026), text: Gemma 3 with larger heads in layers without a window, and norms of values."""

from __future__ import annotations

from services.generation.target.families.family import Family

GEMMA4 = Family(
    name="gemma4_text",
    architecture="Gemma4ForCausalLM",
    multimodal="Gemma4ForConditionalGeneration",
    gguf_name="",
    gguf_interleaved=False,
    qkv_bias=False,
    head_norms=True,
    windows=True,
    activation="gelu_pytorch_tanh",
    sandwich_norms=True,
    scaled=("final_logit_softcapping",),
    query_scale=1.0,
    sizes_by_layer=True,
)
