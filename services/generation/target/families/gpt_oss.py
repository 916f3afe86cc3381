"""gpt-oss (OpenAI 2025): experts with biases and bounds, sinks of attention, windows in every second layer."""

from __future__ import annotations

from services.generation.target.families.experts import ExpertNames, StackedExperts
from services.generation.target.families.family import Family

_EXPERT = "mlp.experts.{}"

GPT_OSS = Family(
    name="gpt_oss",
    architecture="GptOssForCausalLM",
    gguf_name="gpt-oss",
    gguf_interleaved=False,
    qkv_bias=False,
    head_norms=False,
    windows=True,
    experts=ExpertNames("mlp.router", f"{_EXPERT}.gate_proj", f"{_EXPERT}.up_proj", f"{_EXPERT}.down_proj"),
    stacked=StackedExperts("mlp.experts", transposed=True, interleaved=True),
    expert_bias=True,
    sinks=True,
    clamped=True,
    quantised=("mxfp4",),
    yarn_truncated=False,
    gguf_modules={
        "attn_sinks": "self_attn.sinks",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_gate_inp": "mlp.router",
        "ffn_gate_exps": f"{_EXPERT}.gate_proj",
        "ffn_up_exps": f"{_EXPERT}.up_proj",
        "ffn_down_exps": f"{_EXPERT}.down_proj",
    },
)
