"""A transformers directory as the GGUF file that llama.cpp's convert_hf_to_gguf.py makes of it."""

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, MODEL_ARCH, GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray
from transformers import AutoConfig

from services.generation.target.arrays import Float32
from services.generation.target.config.config_document import inner_size
from services.generation.target.files.safetensors import read_parts
from tests.fakes.tiny_gguf import Change, tokenizer_metadata, write_gguf

_ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA, "smollm3": MODEL_ARCH.SMOLLM3, "phi3": MODEL_ARCH.PHI3, "gemma2": MODEL_ARCH.GEMMA2,
    "gemma3_text": MODEL_ARCH.GEMMA3, "qwen3_moe": MODEL_ARCH.QWEN3MOE, "mixtral": MODEL_ARCH.LLAMA,
    "gpt_oss": MODEL_ARCH.GPT_OSS, "llama4_text": MODEL_ARCH.LLAMA4, "gemma4_text": MODEL_ARCH.GEMMA4,
    "lfm2": MODEL_ARCH.LFM2, "granite": MODEL_ARCH.GRANITE,
    "lfm2_moe": MODEL_ARCH.LFM2MOE, "olmo2": MODEL_ARCH.OLMO2, "olmo3": MODEL_ARCH.OLMO2,
    "ministral3": MODEL_ARCH.MISTRAL3, "exaone4": MODEL_ARCH.EXAONE4, "seed_oss": MODEL_ARCH.SEED_OSS,
    "ernie4_5": MODEL_ARCH.ERNIE4_5, "qwen3_5_text": MODEL_ARCH.QWEN35, "qwen3_5_moe_text": MODEL_ARCH.QWEN35MOE,
    "qwen3_next": MODEL_ARCH.QWEN3NEXT, "granitemoehybrid": MODEL_ARCH.GRANITE_HYBRID,
    "granitemoe": MODEL_ARCH.GRANITE_MOE, "qwen3": MODEL_ARCH.QWEN3,
}  # fmt: skip
_DTYPES = {"F32": np.float32, "F16": np.float16}
_PERMUTED = ("llama", "smollm3", "mixtral", "granite", "ministral3", "granitemoehybrid", "granitemoe")
"""Families whose rows of q and k are put in the order of an interleaved rotation."""


def convert(
    directory: Path, path: Path, kind_of_matrices: GGMLQuantizationType = GGMLQuantizationType.F32,
    kind_of_experts: GGMLQuantizationType | None = None, change_metadata: Change = lambda metadata: None,
    change_tensors: Change = lambda tensors: None, part_tensors: int = 0,
    named: str | None = None,
) -> Path:  # fmt: skip
    """Write `path`, with matrices in one storage if their rows are whole blocks of it; return `path`.

    `part_tensors` above 0: the tensors of each part, written beside `path`. `named`: another general.architecture.
    """
    config = AutoConfig.from_pretrained(directory)
    config.allow_global_per_layer_attribute_access = True  # of Gemma 4: what layers with a window have
    kind = json.loads((directory / "config.json").read_bytes())["model_type"]
    architecture = _ARCHITECTURES[kind]
    name = named or gguf.MODEL_ARCH_NAMES[architecture]
    fields = _sizes(config) | _OWN_FIELDS[kind](config)
    metadata = {f"{name}.{key}": value for key, value in fields.items() if value is not None}
    parts = read_parts(directory / "model.safetensors")  # mapped, for a model may be larger than memory
    stored = {name: part.read().view(_DTYPES[part.dtype]).reshape(part.shape) for name, part in parts.items()}
    own_head = any(tensor.startswith("mtp.") for tensor in stored)
    if own_head:
        metadata |= {f"{name}.block_count": config.num_hidden_layers + 1, f"{name}.nextn_predict_layers": 1}
        stored = _behind(stored, config.num_hidden_layers)
    tensors = _own_tensors(config) | _stacked(_unjoined(kind, stored))
    tensors = {name: part for whole, values in tensors.items() for name, part in _states(config, whole, values)}
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers + own_head)
    written = {}
    for tensor, values in tensors.items():
        stored_as = kind_of_experts if kind_of_experts and values.ndim == 3 else kind_of_matrices
        stored_as = GGMLQuantizationType.F32 if tensor.endswith("norm.weight") else stored_as
        written[_gguf_name(names, tensor)] = _stored(_converted(tensor, kind, config, values), stored_as)
    metadata |= tokenizer_metadata(config.vocab_size)
    change_metadata(metadata)
    change_tensors(written)
    write_gguf(path, name, metadata, written, part_tensors)
    return path


def _stored(values: Float32, kind: GGMLQuantizationType) -> tuple[int, NDArray[Any]]:
    if values.ndim == 1 or values.shape[-1] % GGML_QUANT_SIZES[kind][0]:
        return int(GGMLQuantizationType.F32), values.astype(np.float32, copy=False)
    return int(kind), quantize(values, kind)


_NEXTN = {
    "fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head_norm",
}  # fmt: skip


def _behind(tensors: dict[str, Float32], layers: int) -> dict[str, Float32]:
    """Tensors with an MTP block's as one more layer, each expert by itself."""
    found: dict[str, Float32] = {}
    for name, values in tensors.items():
        own = name.removeprefix("mtp.")
        place = f"model.layers.{layers}.{own.removeprefix('layers.0.')}"
        if own == name:
            found[name] = values
        elif not own.startswith("layers.0."):
            found[f"blk.{layers}.nextn.{_NEXTN[own.removesuffix('.weight')]}.weight"] = values
        elif own.endswith("experts.gate_up_proj"):
            for number, (gate, up) in enumerate(np.split(each, 2) for each in values):
                stem = f"{place.removesuffix('.gate_up_proj')}.{number}"
                found |= {f"{stem}.gate_proj.weight": gate, f"{stem}.up_proj.weight": up}
        elif own.endswith("experts.down_proj"):
            stem = place.removesuffix(".down_proj")
            found |= {f"{stem}.{number}.down_proj.weight": each for number, each in enumerate(values)}
        else:
            found[place] = values
    return found


def _gguf_name(names: gguf.TensorNameMap, tensor: str) -> str:
    if tensor.startswith(("blk.", "nextn.")):
        return tensor
    tensor = f"{tensor}.weight" if tensor.endswith((".sinks", ".layer_scalar")) else tensor
    tensor = f"{tensor}.bias" if tensor.endswith(".expert_bias") else tensor
    for own, others in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):  # of LFM2
        tensor = tensor.replace(f"feed_forward.experts.{own}.", f"feed_forward.experts.{others}.")
    for vector, module in (("router.scale", "router.proj"), ("router.per_expert_scale", "experts.down_proj")):
        tensor = tensor.replace(vector, f"{module}.scale")
    stem, _, kind = tensor.rpartition(".")
    if kind in ("A_log", "D"):
        return str(names.get_name(tensor))
    if kind == "dt_bias":
        stem, kind = f"{stem}.dt_proj", "bias"
    return tensor if stem.startswith("rope_") else f"{names.get_name(stem)}.{kind}"


def _converted(tensor: str, kind: str, config: Any, values: Float32) -> Float32:
    if kind in _PERMUTED and tensor.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config.num_attention_heads if "q_proj" in tensor else config.num_key_value_heads
        pairs = values.reshape(heads, 2, len(values) // heads // 2, -1)
        return pairs.swapaxes(1, 2).reshape(values.shape)
    around_one = "gemma2", "gemma3_text", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"
    if kind in around_one and tensor.endswith("norm.weight") and not tensor.endswith("linear_attn.norm.weight"):
        return values + np.float32(1)
    if tensor.endswith("conv.conv.weight"):
        return values.squeeze(1)
    return values


def _sizes(config: Any) -> dict[str, Any]:
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "intermediate_size", None),
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "vocab_size": config.vocab_size,
    }


def _stacked(tensors: dict[str, Float32]) -> dict[str, Float32]:
    """The matrices of all experts of a layer as one tensor [experts, out, in]."""
    found: dict[str, list[tuple[int, Float32]]] = {}
    for name, values in tensors.items():
        parts = re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name)
        stacked, number = (f"{parts[1]}.{parts[3]}", int(parts[2])) if parts else (name, -1)
        found.setdefault(stacked, []).append((number, values))
    return {
        name: np.stack([values for _, values in sorted(several, key=lambda each: each[0])])
        if several[0][0] >= 0 else several[0][1]
        for name, several in found.items()
    }  # fmt: skip


def _unjoined(family: str, tensors: dict[str, Float32]) -> dict[str, Float32]:
    """gpt-oss and Llama 4 have gate and up in one tensor, and matrices as [in, out]; in gpt-oss outputs take turns."""
    if family == "gemma4_text":
        return {f"{name}.weight" if ".experts." in name else name: values for name, values in tensors.items()}
    found: dict[str, Float32] = {}
    for name, values in tensors.items():
        stem, _, module = name.rpartition(".")
        kind = "bias" if module.endswith("_bias") else "weight"
        values = values.swapaxes(1, 2) if kind == "weight" and stem.endswith(".experts") else values
        if module.startswith("gate_up_proj"):
            parts = (values[:, 0::2], values[:, 1::2]) if family == "gpt_oss" else np.split(values, 2, axis=1)
            found |= {f"{stem}.{name}_proj.{kind}": part for name, part in zip(("gate", "up"), parts, strict=True)}
        elif stem.endswith(".experts"):
            found[f"{stem}.down_proj.{kind}"] = values
        else:
            found[name] = values
    return {name: np.ascontiguousarray(values) for name, values in found.items()}


def _states(config: Any, name: str, values: Float32) -> list[tuple[str, Float32]]:
    """A tensor of a state as llama.cpp has it: of Qwen3.5 the value heads of all key heads take turns."""
    module, sizes = name.rpartition("linear_attn.")[2], vars(config)
    if config.model_type.startswith("granitemoe"):
        return _granite_4(config, name, values)
    if "linear_attn." not in name:
        return [(name, values)]
    key_heads, keys = sizes["linear_num_key_heads"], sizes["linear_key_head_dim"] * sizes["linear_num_key_heads"]
    if module == "in_proj_qkvz.weight":
        share = (len(values) - 2 * keys) // 2 // key_heads
        key = keys // key_heads
        parts = np.split(values.reshape(key_heads, -1, values.shape[1]), [key, 2 * key, 2 * key + share], axis=1)
        q, k, v, z = (part.reshape(-1, values.shape[1]) for part in parts)
        return [(name.replace("qkvz", "qkv"), np.concatenate([q, k, v])), (name.replace("qkvz", "z"), z)]
    values = values.squeeze(1) if values.ndim == 3 else values
    values = -np.exp(values.astype(np.float64)).astype(np.float32) if module == "A_log" else values
    if config.model_type == "qwen3_next" or module == "norm.weight":
        return [(name, values)]
    if module == "out_proj.weight":
        return [(name, _in_turns(values.T, key_heads, sizes["linear_num_value_heads"]).T)]
    first = 2 * keys if module in ("in_proj_qkv.weight", "conv1d.weight") else 0
    turned = _in_turns(values[first:], key_heads, sizes["linear_num_value_heads"])
    return [(name, np.concatenate([values[:first], turned]))]


def _granite_4(config: Any, name: str, values: Float32) -> list[tuple[str, Float32]]:
    """Gate and up apart, under names that gguf knows; vectors of a state in columns, its norm by group."""
    stem, _, end = name.rpartition(".")
    shared = "mlp.shared_expert." if config.num_local_experts else "mlp."
    for fused, own in (("shared_mlp.input_linear", shared), ("block_sparse_moe.input_linear", "mlp.experts.")):
        if stem.endswith(fused):
            halves = map(np.ascontiguousarray, np.split(values, 2, axis=-2))
            own = stem.replace(fused, own)
            return [(f"{own}{half}_proj.weight", part) for half, part in zip(("gate", "up"), halves, strict=True)]
    name = name if config.num_local_experts else name.replace("shared_mlp.output_linear", "mlp.down_proj")
    if end == "A_log":
        return [(name, -np.exp(values.astype(np.float64)).astype(np.float32)[:, None])]
    if end == "D":
        return [(name, values[:, None])]
    if stem.endswith("mamba.norm"):
        return [(name, values.reshape(config.mamba_n_groups, -1))]
    return [(name, values.squeeze(1) if stem.endswith("conv1d") and values.ndim == 3 else values)]


def _in_turns(values: Float32, key_heads: int, heads: int) -> Float32:
    """[value heads * size, ...], head by head of each key head, as head by head of each place beside its key head."""
    grouped = values.reshape(key_heads, heads // key_heads, len(values) // heads, *values.shape[1:])
    return np.ascontiguousarray(grouped.swapaxes(0, 1)).reshape(values.shape)


def _smollm3(config: Any) -> dict[str, Any]:
    head_dim = config.hidden_size // config.num_attention_heads
    return {"rope.freq_base": config.rope_parameters["rope_theta"], "rope.dimension_count": head_dim}


def _phi3(config: Any) -> dict[str, Any]:
    rope, head_dim = config.rope_parameters, config.hidden_size // config.num_attention_heads
    trained = config.original_max_position_embeddings
    scale = config.max_position_embeddings / trained
    attention = float(np.sqrt(1 + np.log(scale) / np.log(trained))) if scale > 1 else 1.0
    return {
        "rope.scaling.original_context_length": trained,
        "rope.dimension_count": int(rope["partial_rotary_factor"] * head_dim),
        "rope.freq_base": rope["rope_theta"],
        "attention.sliding_window": config.sliding_window or 0,
        "rope.scaling.attn_factor": attention if rope["rope_type"] == "longrope" else None,
    }


def _gemma2(config: Any) -> dict[str, Any]:
    return {
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attn_logit_softcapping": config.attn_logit_softcapping,
        "final_logit_softcapping": config.final_logit_softcapping,
        "attention.sliding_window": config.sliding_window,
    }


def _gemma3(config: Any) -> dict[str, Any]:
    rope, every = config.rope_parameters["full_attention"], config.layer_types.index("full_attention") + 1
    return {
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": None if every == 6 else every,
        "rope.freq_base": rope["rope_theta"],
        "rope.scaling.type": None if rope["rope_type"] == "default" else rope["rope_type"],
        "rope.scaling.factor": rope.get("factor"),
    }


def _experts(config: Any) -> dict[str, Any]:
    return {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", None),
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }


def _delta(config: Any) -> dict[str, Any]:
    kinds = config.layer_types
    found = {
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "rope.dimension_count": int(config.head_dim * config.rope_parameters["partial_rotary_factor"]),
        "rope.dimension_sections": [*config.rope_parameters.get("mrope_section", [11, 11, 10]), 0],
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.recurrent_layers": None if kinds[3:4] == ["full_attention"] else [k[0] == "l" for k in kinds],
    }
    if not hasattr(config, "num_experts"):
        return found
    return _experts(config) | found | {"expert_shared_feed_forward_length": config.shared_expert_intermediate_size}


def _gpt_oss(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters
    return _experts(config) | {
        "expert_feed_forward_length": config.intermediate_size,
        "attention.sliding_window": config.sliding_window,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
    }


def _llama4(config: Any) -> dict[str, Any]:
    return {
        "feed_forward_length": config.intermediate_size_mlp,
        "expert_feed_forward_length": config.intermediate_size,
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "interleave_moe_layer_step": config.interleave_moe_layer_step,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }


def _gemma4(config: Any) -> dict[str, Any]:
    windows = [kind == "sliding_attention" for kind in config.layer_types]
    each, full = config.per_layer_config, windows.index(False)
    heads = [each[number].num_key_value_heads for number in range(len(windows))]
    own, inner = len(windows) - config.num_kv_shared_layers, config.intermediate_size
    wide = [inner * (1 if number < own else 2) for number in range(len(windows))]
    return {
        "feed_forward_length": wide if config.use_double_wide_mlp else inner,
        "attention.head_count_kv": heads if len(set(heads)) > 1 else heads[0],
        "attention.key_length": each[full].head_dim,
        "attention.value_length": each[full].head_dim,
        "attention.key_length_swa": config.head_dim,
        "attention.value_length_swa": config.head_dim,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": windows,
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input or 0,
        "expert_count": config.num_experts,
        "expert_used_count": config.top_k_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "rope.freq_base": config.rope_parameters["full_attention"]["rope_theta"],
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
        "rope.dimension_count": each[full].head_dim,
        "rope.dimension_count_swa": config.head_dim,
        "final_logit_softcapping": config.final_logit_softcapping,
    }


def _granite(config: Any) -> dict[str, Any]:
    return {
        "attention.scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }


def _granite_moe(config: Any) -> dict[str, Any]:
    experts = {"expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok}
    return _granite(config) | experts


def _granite_hybrid(config: Any) -> dict[str, Any]:
    shared, experts = config.shared_intermediate_size, dict[str, Any]()
    if config.num_local_experts:
        experts = {"expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok}
    return _granite(config) | experts | {
        "feed_forward_length": config.intermediate_size if experts else shared,
        "expert_shared_feed_forward_length": shared,
        "attention.head_count_kv": [config.num_key_value_heads * (kind[0] == "f") for kind in config.layer_types],
        "rope.scaling.finetuned": False,
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.state_size": config.mamba_d_state,
        "ssm.group_count": config.mamba_n_groups,
        "ssm.inner_size": config.mamba_n_heads * config.mamba_d_head,
        "ssm.time_step_rank": config.mamba_n_heads,
    }  # fmt: skip


def _lfm2(config: Any) -> dict[str, Any]:
    return {
        "feed_forward_length": inner_size(config, "config.json"),
        "attention.head_count_kv": [
            config.num_key_value_heads if k == "full_attention" else 0 for k in config.layer_types
        ],
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "shortconv.l_cache": config.conv_L_cache,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }


def _lfm2_moe(config: Any) -> dict[str, Any]:
    return _lfm2(config) | {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "leading_dense_block_count": config.num_dense_layers,
        "expert_gating_func": 2,
        "expert_weights_scale": config.routed_scaling_factor,
    }


def _olmo2(config: Any) -> dict[str, Any]:
    return {"rope.freq_base": config.rope_parameters["rope_theta"]}


def _olmo3(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters["full_attention"]
    return {
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
        "rope.freq_base": rope["rope_theta"],
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.yarn_attn_factor": rope["attention_factor"],
        "rope.scaling.yarn_beta_fast": rope["beta_fast"],
        "rope.scaling.yarn_beta_slow": rope["beta_slow"],
    }


def _theta(config: Any) -> dict[str, Any]:
    head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    return {
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
    }


def _exaone4(config: Any) -> dict[str, Any]:
    windows = [kind == "sliding_attention" for kind in config.layer_types] if config.sliding_window else None
    return _theta(config) | {
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": windows,
    }


def _ministral3(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters
    return _theta(config) | {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
        "attention.temperature_scale": rope["llama_4_scaling_beta"],
    }


_OWN_FIELDS = {
    "llama": _smollm3, "smollm3": _smollm3, "phi3": _phi3, "gemma2": _gemma2, "gemma3_text": _gemma3,
    "qwen3_moe": _experts, "mixtral": _experts, "gpt_oss": _gpt_oss, "llama4_text": _llama4, "gemma4_text": _gemma4,
    "ministral3": _ministral3, "exaone4": _exaone4, "seed_oss": _theta, "ernie4_5": _theta,
    "granitemoehybrid": _granite_hybrid, "granitemoe": _granite_moe, "qwen3": _theta,
    "qwen3_5_text": _delta, "qwen3_5_moe_text": _delta, "qwen3_next": _delta,
    "lfm2": _lfm2, "granite": _granite, "lfm2_moe": _lfm2_moe, "olmo2": _olmo2, "olmo3": _olmo3,
}  # fmt: skip


def _own_tensors(config: Any) -> dict[str, Float32]:
    """Beside the model's own: LongRoPE's factors, and the frequencies that Gemma 4 leaves out."""
    rope = config.rope_parameters
    if config.model_type == "gemma4_text":
        size = config.per_layer_config[config.layer_types.index("full_attention")].head_dim
        turned = int(size * rope["full_attention"]["partial_rotary_factor"] / 2)
        return {"rope_freqs.weight": np.array([1.0] * turned + [1e30] * (size // 2 - turned), np.float32)}
    if rope.get("rope_type") != "longrope":
        return {}
    return {f"rope_factors_{form}.weight": np.array(rope[f"{form}_factor"], np.float32) for form in ("long", "short")}
