"""The table of families of models. Everything else is in a model's own configuration.

A new family is one more `Family` and a place in `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from services.generation.target.family import DELTA, MAMBA, ExpertNames, Family, ParallelNames, StackedExperts

_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Norms of the outputs of attention and MLP: transformers' names by GGUF's."""
_MLP = ("gate", "up", "down")


def _experts(
    router: str, module: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj"
) -> ExpertNames:
    return ExpertNames(router, *(f"{module}.{{}}.{part}" for part in (gate, up, down)))


# Llama (Touvron et al. 2023), and models published under its name: no norm of heads, no window.
LLAMA = Family(name="llama", architecture="LlamaForCausalLM", gguf_name="llama", gguf_interleaved=True, windows=False)

# Mistral (Jiang et al. 2023): Llama with a sliding window; its GGUF files have Llama's name.
MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    multimodal="Mistral3ForConditionalGeneration",  # of Mistral Small 3
    gguf_name="llama",
    gguf_interleaved=True,
)

# Mixtral (Jiang et al. 2024): Mistral with experts; its GGUF files have Llama's name.
MIXTRAL = Family(
    name="mixtral",
    architecture="MixtralForCausalLM",
    gguf_name="llama",
    gguf_interleaved=True,
    experts=_experts("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"),
)

# Qwen2 and Qwen2.5 (Yang et al. 2024): biases on queries, keys and values.
QWEN2 = Family(name="qwen2", architecture="Qwen2ForCausalLM", gguf_name="qwen2", qkv_bias=True)

# Qwen3 (Yang et al. 2025): each head of queries and keys is normalised before its rotation.
QWEN3 = Family(name="qwen3", architecture="Qwen3ForCausalLM", gguf_name="qwen3", head_norms=True)

# Qwen3-MoE (Yang et al. 2025): Qwen3 with experts.
QWEN3_MOE = Family(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    gguf_name="qwen3moe",
    head_norms=True,
    experts=_experts("mlp.gate", "mlp.experts"),
)

# Qwen2-MoE (Yang et al. 2024): Qwen2 with experts, and a shared expert that a gate scales.
QWEN2_MOE = replace(
    QWEN2,
    name="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    gguf_name="",
    experts=QWEN3_MOE.experts,
    shared_expert=True,
    shared_gate="mlp.shared_expert_gate",
)

# SmolLM3 (Bakouch et al. 2025): Llama in which every fourth layer has no rotary position embeddings.
SMOLLM3 = Family(
    name="smollm3", architecture="SmolLM3ForCausalLM", gguf_name="smollm3", gguf_interleaved=True, unrotated_layers=True
)

# Phi-3 (Abdin et al. 2024), Phi-3.5 and Phi-4: fused modules, LongRoPE, and partial rotation.
PHI3 = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    gguf_name="phi3",
    partial_rotation=True,
    fused=True,
    gguf_modules={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
)

# Gemma 2 (Riviere et al. 2024): norms before and after, windows in every second layer, capped scores and logits.
GEMMA2 = Family(
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    gguf_name="gemma2",
    activation="gelu_pytorch_tanh",
    sandwich_norms=True,
    norms_around_one=True,
    scaled=("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"),
    gguf_wide_queries=46,
    gguf_modules=_SANDWICH,
)

# Gemma 3 (Kamath et al. 2025), text: Gemma 2 with head norms instead of caps, and two rotations.
GEMMA3 = Family(
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    multimodal="Gemma3ForConditionalGeneration",
    gguf_name="gemma3",
    head_norms=True,
    activation="gelu_pytorch_tanh",
    sandwich_norms=True,
    norms_around_one=True,
    scaled=("query_pre_attn_scalar", "final_logit_softcapping"),
    gguf_wide_queries=62,
    gguf_modules=_SANDWICH,
)

# Gemma 4 (Google 2026), text: Gemma 3 with larger heads in layers without a window, norms of values, and, in some
# sizes, experts in addition to MLPs or inputs of each layer.
GEMMA4 = Family(
    name="gemma4_text",
    architecture="Gemma4ForCausalLM",
    multimodal="Gemma4ForConditionalGeneration",
    gguf_name="gemma4",
    head_norms=True,
    activation="gelu_pytorch_tanh",
    sandwich_norms=True,
    scaled=("final_logit_softcapping",),
    query_scale=1.0,
    experts=_experts("router.proj", "experts"),
    stacked=StackedExperts("experts", transposed=False, interleaved=False),
    parallel=ParallelNames(
        router_norm="router.scale",
        norm="pre_feedforward_layernorm_2",
        after="post_feedforward_layernorm_2",
        after_mlp="post_feedforward_layernorm_1",
        scales="router.per_expert_scale",
    ),
    sizes_by_layer=True,
    gguf_modules={
        **_SANDWICH,
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "ffn_gate_inp.scale": "router.scale",
        "ffn_gate_up_exps": "experts.{}.gate_up_proj",
        "ffn_down_exps.scale": "router.per_expert_scale",
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
        "layer_output_scale": "layer_scalar",
    },
)


# gpt-oss (OpenAI 2025): experts with biases and bounds, sinks of attention, windows in every second layer.
GPT_OSS = Family(
    name="gpt_oss",
    architecture="GptOssForCausalLM",
    gguf_name="gpt-oss",
    experts=_experts("mlp.router", "mlp.experts"),
    stacked=StackedExperts("mlp.experts", transposed=True, interleaved=True),
    expert_bias=True,
    sinks=True,
    clamped=True,
    quantised=("mxfp4",),
    yarn_truncated=False,
    gguf_modules={"attn_sinks": "self_attn.sinks", "post_attention_norm": "post_attention_layernorm"},
)

# Llama 4 (Meta 2025), text: experts and a shared expert, and attention in chunks or with a temperature by position.
LLAMA4 = Family(
    name="llama4_text",
    architecture="Llama4ForCausalLM",
    multimodal="Llama4ForConditionalGeneration",
    gguf_name="llama4",
    windows=False,
    unrotated_layers=True,
    experts=_experts("feed_forward.router", "feed_forward.experts"),
    stacked=StackedExperts("feed_forward.experts", transposed=True, interleaved=False),
    sigmoid_router=True,
    shared_expert=True,
    mlp="feed_forward",
    interleaved=True,
    unit_head_norms=True,
    chunks=True,
    tempered=True,
    gguf_modules={
        **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in _MLP},
        **{f"ffn_{part}_shexp": f"feed_forward.shared_expert.{part}_proj" for part in _MLP},
    },
)

# LFM2 and LFM2.5 (Liquid AI 2025): gated short convolutions, and attention with head norms in a few layers.
LFM2 = Family(
    name="lfm2",
    architecture="Lfm2ForCausalLM",
    gguf_name="lfm2",
    windows=False,
    head_norms=True,
    convolved=True,
    final_norm="model.embedding_norm.weight",
    names={
        "input_layernorm": "operator_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_norm": "self_attn.q_layernorm",
        "self_attn.k_norm": "self_attn.k_layernorm",
        "self_attn.o_proj": "self_attn.out_proj",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    },
    gguf_modules={
        "attn_norm": "operator_norm",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "attn_output": "self_attn.out_proj",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.conv": "conv.conv",
        "shortconv.out_proj": "conv.out_proj",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
    },
)


# LFM2 with experts (Liquid AI 2025): scores by sigmoid, with a bias only to choose experts.
LFM2_MOE = replace(
    LFM2,
    name="lfm2_moe",
    architecture="Lfm2MoeForCausalLM",
    gguf_name="lfm2moe",
    experts=_experts("feed_forward.gate", "feed_forward.experts", "w1", "w3", "w2"),
    scored_router=True,
    choice_bias="feed_forward.expert_bias",
    gguf_modules={**LFM2.gguf_modules, "exp_probs_b": "feed_forward.expert_bias"},
)


# OLMo 2 (OLMo et al. 2024): norms after attention and MLP and none before, and norms over all queries and all keys.
OLMO2 = Family(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    gguf_name="olmo2",
    windows=False,
    head_norms=True,
    whole_norms=True,
    sandwich_norms=True,
    norms_before=False,
    gguf_modules={"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"},
)

# OLMo 3 (Ai2 2025): OLMo 2 with windows in three of four layers, whose rotation is never scaled.
OLMO3 = replace(OLMO2, name="olmo3", architecture="Olmo3ForCausalLM", windows=True, rotations_by_kind=True)


# Granite 3 (IBM 2024), dense: Llama with four factors.
GRANITE = Family(
    name="granite",
    architecture="GraniteForCausalLM",
    gguf_name="granite",
    gguf_interleaved=True,
    windows=False,
    multipliers=True,
)

# Granite 3 with experts (IBM 2024).
GRANITE_MOE = replace(
    GRANITE,
    name="granitemoe",
    architecture="GraniteMoeForCausalLM",
    gguf_name="granitemoe",
    experts=_experts("block_sparse_moe.router.layer", "block_sparse_moe"),
    stacked=StackedExperts(
        "block_sparse_moe", transposed=False, interleaved=False, gate_up="input_linear", down="output_linear"
    ),
)

# Granite 4 (IBM 2025): Granite with Mamba-2 layers in place of most attention, and in some sizes experts and an MLP.
GRANITE_HYBRID = replace(
    GRANITE_MOE,
    name="granitemoehybrid",
    architecture="GraniteMoeHybridForCausalLM",
    gguf_name="granitehybrid",
    mamba=True,
    fused_mlp=True,
    mlp="shared_mlp",
    names={"shared_mlp.gate_up_proj": "shared_mlp.input_linear", "shared_mlp.down_proj": "shared_mlp.output_linear"},
    dense_mlp=True,
    gguf_modules={
        **{f"ffn_{part}{end}": f"shared_mlp.{part}_proj" for part in ("gate", "up") for end in ("", "_shexp")},
        **{f"ffn_down{end}": "shared_mlp.output_linear" for end in ("", "_shexp")},
        "ssm_in": f"{MAMBA}.in_proj",
        "ssm_conv1d": f"{MAMBA}.conv1d",
        "ssm_dt": f"{MAMBA}.dt_bias",
        "ssm_a": f"{MAMBA}.A_log",
        "ssm_d": f"{MAMBA}.D",
        "ssm_norm": f"{MAMBA}.norm",
        "ssm_out": f"{MAMBA}.out_proj",
    },
)

# Qwen3.5 and later (Qwen 2026), dense: three of four layers fold a state, the others attend with gates.
QWEN3_5 = Family(
    name="qwen3_5_text",
    architecture="Qwen3_5ForCausalLM",
    multimodal="Qwen3_5ForConditionalGeneration",
    gguf_name="qwen35",
    windows=False,
    head_norms=True,
    norms_around_one=True,
    partial_rotation=True,
    delta=True,
    tiled=True,
    gated=True,
    own_head=True,
    gguf_modules={
        "post_attention_norm": "post_attention_layernorm",
        "attn_qkv": f"{DELTA}.in_proj_qkv",
        "attn_gate": f"{DELTA}.in_proj_z",
        "ssm_beta": f"{DELTA}.in_proj_b",
        "ssm_alpha": f"{DELTA}.in_proj_a",
        "ssm_ba": f"{DELTA}.in_proj_ba",
        "ssm_conv1d": f"{DELTA}.conv1d",
        "ssm_dt": f"{DELTA}.dt_bias",
        "ssm_a": f"{DELTA}.A_log",
        "ssm_norm": f"{DELTA}.norm",
        "ssm_out": f"{DELTA}.out_proj",
    },
)

# Qwen3.5 and later with experts: all layers have them, and a shared expert that a gate scales.
QWEN3_5_MOE = replace(
    QWEN3_5,
    name="qwen3_5_moe_text",
    architecture="Qwen3_5MoeForCausalLM",
    multimodal="Qwen3_5MoeForConditionalGeneration",
    gguf_name="qwen35moe",
    experts=QWEN3_MOE.experts,
    stacked=StackedExperts("mlp.experts", transposed=False, interleaved=False),
    shared_expert=True,
    shared_gate="mlp.shared_expert_gate",
    gguf_modules={
        **QWEN3_5.gguf_modules,
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        **{f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in _MLP},
    },
)

# Qwen3-Next (Qwen 2025): the predecessor of Qwen3.5; value heads of a key head are adjacent.
QWEN3_NEXT = replace(
    QWEN3_5_MOE,
    name="qwen3_next",
    architecture="Qwen3NextForCausalLM",
    multimodal="",
    gguf_name="qwen3next",
    tiled=False,
    joined=True,
)


# Ministral 3 (Mistral AI 2025): Mistral with queries scaled by position.
MINISTRAL3 = replace(
    MISTRAL,
    name="ministral3",
    architecture="Ministral3ForCausalLM",
    multimodal="Mistral3ForConditionalGeneration",
    gguf_name="mistral3",
    beta=True,
)

# Qwen3-VL (Qwen 2025), text: Qwen3, since a text token has equal positions in all three sections of the rotation.
QWEN3_VL = replace(
    QWEN3,
    name="qwen3_vl_text",
    architecture="Qwen3VLTextModel",
    multimodal="Qwen3VLForConditionalGeneration",
    gguf_name="qwen3vl",
)

# EXAONE 4 (LG AI Research 2025): OLMo 2 with norms of each head; large models rotate only in layers with a window.
EXAONE4 = replace(
    OLMO2,
    name="exaone4",
    architecture="Exaone4ForCausalLM",
    gguf_name="exaone4",
    windows=True,
    whole_norms=False,
    rotated_windows=True,
)

# Seed-OSS (ByteDance 2025): Llama with biases on queries, keys and values.
SEED_OSS = Family(
    name="seed_oss",
    architecture="SeedOssForCausalLM",
    gguf_name="seed_oss",
    windows=False,
    qkv_bias=True,
    gguf_modules={"post_attention_norm": "post_attention_layernorm"},
)

# ERNIE 4.5 (Baidu 2025), dense: Llama with an interleaved rotation.
ERNIE4_5 = Family(
    name="ernie4_5", architecture="Ernie4_5ForCausalLM", gguf_name="ernie4_5", windows=False, interleaved=True
)


FAMILIES = (
    LLAMA, MISTRAL, QWEN2, QWEN2_MOE, QWEN3, SMOLLM3, PHI3, GEMMA2, GEMMA3, QWEN3_MOE, MIXTRAL, GPT_OSS, LLAMA4,
    GEMMA4, LFM2, GRANITE, GRANITE_MOE, GRANITE_HYBRID, LFM2_MOE, OLMO2, OLMO3, MINISTRAL3, QWEN3_VL, EXAONE4, SEED_OSS,
    ERNIE4_5, QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT,
)  # fmt: skip

# Its layers read the target's keys and values: it drafts (drafting/mtp/assistant.py) and is no base.
GEMMA4_ASSISTANT = replace(GEMMA4, gguf_name="gemma4-assistant")

BY_NAME: Mapping[str, Family] = {family.name: family for family in FAMILIES}
