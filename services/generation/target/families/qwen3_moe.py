"""Qwen3-MoE (Yang et al. 2025): Qwen3 with experts."""

from __future__ import annotations

from services.generation.target.families.experts import ExpertNames
from services.generation.target.families.family import Family

QWEN3_MOE = Family(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    gguf_name="qwen3moe",
    gguf_interleaved=False,
    qkv_bias=False,
    head_norms=True,
    windows=True,
    experts=ExpertNames("mlp.gate", "mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj", "mlp.experts.{}.down_proj"),
    gguf_modules={
        "ffn_gate_inp": "mlp.gate",
        "ffn_gate_exps": "mlp.experts.{}.gate_proj",
        "ffn_up_exps": "mlp.experts.{}.up_proj",
        "ffn_down_exps": "mlp.experts.{}.down_proj",
    },
)
