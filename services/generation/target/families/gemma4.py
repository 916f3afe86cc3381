"""Gemma 4 (Google 2026), text: Gemma 3 with larger heads in layers without a window, norms of values, and, by size,
experts beside MLPs or inputs of each layer.
"""

from __future__ import annotations

from services.generation.target.families.experts import BesideNames, ExpertNames, StackedExperts
from services.generation.target.families.family import Family

_EXPERT = "experts.{}"

GEMMA4 = Family(
    name="gemma4_text",
    architecture="Gemma4ForCausalLM",
    multimodal="Gemma4ForConditionalGeneration",
    gguf_name="gemma4",
    gguf_interleaved=False,
    qkv_bias=False,
    head_norms=True,
    windows=True,
    activation="gelu_pytorch_tanh",
    sandwich_norms=True,
    scaled=("final_logit_softcapping",),
    query_scale=1.0,
    experts=ExpertNames("router.proj", f"{_EXPERT}.gate_proj", f"{_EXPERT}.up_proj", f"{_EXPERT}.down_proj"),
    stacked=StackedExperts("experts", transposed=False, interleaved=False),
    beside=BesideNames(
        router_norm="router.scale",
        norm="pre_feedforward_layernorm_2",
        after="post_feedforward_layernorm_2",
        after_mlp="post_feedforward_layernorm_1",
        scales="router.per_expert_scale",
    ),
    sizes_by_layer=True,
    gguf_modules={
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "ffn_gate_inp": "router.proj",
        "ffn_gate_inp.scale": "router.scale",
        "ffn_gate_up_exps": f"{_EXPERT}.gate_up_proj",
        "ffn_gate_exps": f"{_EXPERT}.gate_proj",
        "ffn_up_exps": f"{_EXPERT}.up_proj",
        "ffn_down_exps": f"{_EXPERT}.down_proj",
        "ffn_down_exps.scale": "router.per_expert_scale",
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
        "layer_output_scale": "layer_scalar",
    },
)
