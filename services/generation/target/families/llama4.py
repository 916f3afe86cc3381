"""Llama 4 (Meta 2025), text: experts beside a shared one, and attention in chunks or, by position, tempered."""

from __future__ import annotations

from services.generation.target.families.experts import ExpertNames, StackedExperts
from services.generation.target.families.family import Family

_EXPERT, _SHARED = "feed_forward.experts.{}", "feed_forward.shared_expert"

LLAMA4 = Family(
    name="llama4_text",
    architecture="Llama4ForCausalLM",
    multimodal="Llama4ForConditionalGeneration",
    gguf_name="llama4",
    gguf_interleaved=False,
    qkv_bias=False,
    head_norms=False,
    windows=False,
    unrotated_layers=True,
    experts=ExpertNames("feed_forward.router", f"{_EXPERT}.gate_proj", f"{_EXPERT}.up_proj", f"{_EXPERT}.down_proj"),
    stacked=StackedExperts("feed_forward.experts", transposed=True, interleaved=False),
    sigmoid_router=True,
    shared_expert=True,
    mlp="feed_forward",
    neighbours=True,
    unit_head_norms=True,
    chunks=True,
    tempered=True,
    gguf_modules={
        "ffn_gate": "feed_forward.gate_proj",
        "ffn_up": "feed_forward.up_proj",
        "ffn_down": "feed_forward.down_proj",
        "ffn_gate_inp": "feed_forward.router",
        "ffn_gate_exps": f"{_EXPERT}.gate_proj",
        "ffn_up_exps": f"{_EXPERT}.up_proj",
        "ffn_down_exps": f"{_EXPERT}.down_proj",
        "ffn_gate_shexp": f"{_SHARED}.gate_proj",
        "ffn_up_shexp": f"{_SHARED}.up_proj",
        "ffn_down_shexp": f"{_SHARED}.down_proj",
    },
)
