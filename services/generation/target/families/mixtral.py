"""Mixtral (Jiang et al. 2024): Mistral with experts; its GGUF files call it a llama."""

from __future__ import annotations

from services.generation.target.families.experts import ExpertNames
from services.generation.target.families.family import Family

_EXPERT = "block_sparse_moe.experts.{}"

MIXTRAL = Family(
    name="mixtral",
    architecture="MixtralForCausalLM",
    gguf_name="llama",
    gguf_interleaved=True,
    qkv_bias=False,
    head_norms=False,
    windows=True,
    experts=ExpertNames("block_sparse_moe.gate", f"{_EXPERT}.w1", f"{_EXPERT}.w3", f"{_EXPERT}.w2"),
    gguf_modules={
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": f"{_EXPERT}.w1",
        "ffn_up_exps": f"{_EXPERT}.w3",
        "ffn_down_exps": f"{_EXPERT}.w2",
    },
)
