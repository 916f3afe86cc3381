"""Tiny models of the families whose layers differ from Llama's in more than a few choices, for `make_tiny_model`."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from safetensors import numpy as arrays
from safetensors.torch import load_file, save_file
from transformers.models.gemma3 import Gemma3Config, Gemma3ForConditionalGeneration
from transformers.models.gemma4 import Gemma4Config, Gemma4ForConditionalGeneration
from transformers.models.llama4 import Llama4Config, Llama4ForConditionalGeneration
from transformers.models.mistral3 import Mistral3Config, Mistral3ForConditionalGeneration
from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForConditionalGeneration
from transformers.models.qwen3_5_moe import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration
from transformers.models.qwen3_vl import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from services.generation.target.arrays import Bytes
from tests.fakes.tiny_model import tiny_tokenizer

LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 256,
    "short_factor": [1.0, 1.1, 1.3, 1.2, 1.7, 2.5], "long_factor": [1.1, 2.0, 3.5, 6.0, 9.0, 20.0],
}  # fmt: skip
_GRANITE = {
    "embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.22, "logits_scaling": 3.0,
}  # fmt: skip
_GRANITE_4 = _GRANITE | {"architecture": "granite_hybrid", "shared_intermediate_size": 80}
FAMILIES: dict[str, dict[str, Any]] = {
    "smollm3": {"architecture": "smollm3", "layers": 5, "tie_word_embeddings": True},
    "smollm3, sliding": {
        "architecture": "smollm3", "no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 40,
    },
    "phi3": {"architecture": "phi3", "sliding_window": 60, "hidden": 72, "heads": 6, "kv_heads": 3,
             "intermediate_size": 101},
    "phi3, longrope within, partial": {
        "architecture": "phi3", "context": 256, "rope_parameters": LONGROPE | {"partial_rotary_factor": 0.75},
        "tie_word_embeddings": True, "original_max_position_embeddings": 256,
    },
    "phi3, longrope beyond": {
        "architecture": "phi3", "hidden": 48, "original_max_position_embeddings": 64,
        "rope_parameters": LONGROPE | {"original_max_position_embeddings": 64},
    },
    "gemma2": {
        "architecture": "gemma2", "layers": 3, "head_dim": 24, "sliding_window": 40, "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0, "tie_word_embeddings": True,
    },
    "gemma2, other scales": {
        "architecture": "gemma2", "query_pre_attn_scalar": 100, "attn_logit_softcapping": None,
        "final_logit_softcapping": None, "tie_word_embeddings": True,
    },
    "gemma3": {
        "architecture": "gemma3", "layers": 7, "hidden": 32, "head_dim": 16, "sliding_window": 30,
        "query_pre_attn_scalar": 16, "tie_word_embeddings": True,
    },
    "gemma3, linear": {
        "architecture": "gemma3", "layers": 3, "head_dim": 24, "sliding_window": 40, "query_pre_attn_scalar": 24,
        "sliding_window_pattern": 2, "tie_word_embeddings": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "gemma4": {
        "architecture": "gemma4", "layers": 3, "head_dim": 16, "global_head_dim": 24, "num_global_key_value_heads": 1,
        "attention_k_eq_v": True, "sliding_window": 30, "hidden_size_per_layer_input": 0, "tie_word_embeddings": True,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "final_logit_softcapping": 2.0,
    },
    "gemma4, shared keys and inputs of layers": {
        "architecture": "gemma4", "layers": 4, "head_dim": 12, "global_head_dim": 32, "sliding_window": 40,
        "hidden_size_per_layer_input": 20, "vocab_size_per_layer_input": 384, "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True, "layer_types": ["sliding_attention", "full_attention"] * 2,
        "tie_word_embeddings": True,
    },
    "granite": {**_GRANITE, "architecture": "granite", "layers": 3, "tie_word_embeddings": True},
    "olmo2": {"architecture": "olmo2", "layers": 3, "hidden": 72, "heads": 6, "kv_heads": 3},
    "olmo3": {
        "architecture": "olmo3", "layers": 5, "sliding_window": 40,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 64,
                "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
        },
    },
    "ministral3": {
        "architecture": "ministral3",
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 32,
            "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
        },
    },
    "exaone4": {"architecture": "exaone4", "layers": 5, "sliding_window": 40, "tie_word_embeddings": True},
    "exaone4, all layers turn": {
        "architecture": "exaone4", "sliding_window": None, "layer_types": ["full_attention"] * 2,
        "tie_word_embeddings": True,
    },
    "seed_oss": {"architecture": "seed_oss", "head_dim": 24},
    "ernie4_5": {"architecture": "ernie4_5", "head_dim": 24, "tie_word_embeddings": True},
    "lfm2": {
        "architecture": "lfm2", "layers": 3, "hidden": 72, "heads": 6, "kv_heads": 3,
        "layer_types": ["conv", "full_attention", "conv"], "tie_word_embeddings": True,
        "block_auto_adjust_ff_dim": False,
    },
    "lfm2, wide taps, a size that follows": {
        "architecture": "lfm2", "layers": 4, "conv_L_cache": 5, "layer_types": ["conv"] * 3 + ["full_attention"],
        "tie_word_embeddings": True, "block_multiple_of": 32,
    },
    "qwen3_5": {
        "architecture": "qwen3_5", "layers": 4, "head_dim": 32, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "tie_word_embeddings": True,
    },
    "qwen3_5, as many values as keys, more taps": {
        "architecture": "qwen3_5", "layers": 3, "hidden": 72, "heads": 6, "kv_heads": 3, "head_dim": 16,
        "linear_key_head_dim": 48, "linear_value_head_dim": 16, "linear_num_key_heads": 3, "linear_num_value_heads": 3,
        "linear_conv_kernel_dim": 6, "layer_types": ["full_attention", "linear_attention", "linear_attention"],
    },
    "granite_hybrid": {
        **_GRANITE_4, "layers": 4, "num_local_experts": 0, "mamba_n_heads": 4,
        "mamba_d_state": 16, "mamba_d_head": 32, "position_embedding_type": "nope",
        "layer_types": ["mamba", "mamba", "attention", "mamba"], "tie_word_embeddings": True,
    },
    "granite_hybrid, groups, more taps, no bias, rotations": {
        **_GRANITE_4, "layers": 3, "num_local_experts": 0, "mamba_n_heads": 8,
        "mamba_d_state": 48, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_conv": 6, "mamba_conv_bias": False,
        "position_embedding_type": "rope", "layer_types": ["attention", "mamba", "mamba"],
    },
    "granite_hybrid, attention alone": {
        **_GRANITE_4, "num_local_experts": 0, "layer_types": ["attention"] * 2,
        "mamba_n_heads": 4, "position_embedding_type": "rope",
    },
}  # fmt: skip
WITH_EXPERTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        "architecture": "qwen3_moe", "head_dim": 24, "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True,
        "moe_intermediate_size": 40,
    },
    "qwen3_moe, shares of all, a layer without": {
        "architecture": "qwen3_moe", "layers": 3, "hidden": 40, "num_experts": 5, "num_experts_per_tok": 2,
        "moe_intermediate_size": 36, "mlp_only_layers": [1],
    },
    "qwen2_moe": {
        "architecture": "qwen2_moe", "layers": 3, "num_experts": 6, "num_experts_per_tok": 2, "mlp_only_layers": [1],
        "moe_intermediate_size": 40, "shared_expert_intermediate_size": 56,
    },
    "mixtral": {"architecture": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {
        "architecture": "gpt_oss", "layers": 3, "head_dim": 24, "sliding_window": 40, "num_local_experts": 6,
        "num_experts_per_tok": 3, "intermediate_size": 40,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 16,
        },
    },
    "llama4": {
        "architecture": "llama4", "layers": 5, "head_dim": 24, "num_local_experts": 4, "intermediate_size": 48,
        "intermediate_size_mlp": 80, "interleave_moe_layer_step": 2, "initializer_range": 0.15,
    },
    "llama4, small chunks": {
        "architecture": "llama4", "layers": 4, "num_local_experts": 5, "num_experts_per_tok": 2, "use_qk_norm": False,
        "no_rope_layers": [1, 0, 1, 0], "attention_chunk_size": 40, "floor_scale": 16, "attn_scale": 0.3,
        "intermediate_size_mlp": 64,
    },
    "lfm2_moe": {
        "architecture": "lfm2_moe", "layers": 4, "num_experts": 8, "num_experts_per_tok": 3, "num_dense_layers": 1,
        "moe_intermediate_size": 40, "layer_types": ["conv", "full_attention", "conv", "conv"],
        "routed_scaling_factor": 1.5, "tie_word_embeddings": True,
    },
    "lfm2_moe, scores as they are": {
        "architecture": "lfm2_moe", "layers": 2, "num_experts": 5, "num_experts_per_tok": 2, "num_dense_layers": 0,
        "moe_intermediate_size": 36, "layer_types": ["full_attention", "conv"], "use_expert_bias": False,
        "norm_topk_prob": False,
    },
    "qwen3_5_moe": {
        "architecture": "qwen3_5_moe", "layers": 4, "head_dim": 32, "linear_key_head_dim": 16,
        "linear_value_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 48,
    },
    "granite_moe": {
        **_GRANITE, "architecture": "granite_moe", "num_local_experts": 5, "num_experts_per_tok": 2,
        "intermediate_size": 48,
    },
    "granite_hybrid, experts": {
        **_GRANITE_4, "layers": 3, "num_local_experts": 6, "num_experts_per_tok": 3,
        "intermediate_size": 40, "mamba_n_heads": 4, "mamba_d_state": 32, "mamba_d_head": 32,
        "position_embedding_type": "nope", "layer_types": ["mamba", "attention", "mamba"],
    },
    "qwen3_next": {
        "architecture": "qwen3_next", "layers": 4, "head_dim": 32, "linear_key_head_dim": 16,
        "linear_value_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "num_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 48,
    },
    "qwen3_next, layers without experts": {
        "architecture": "qwen3_next", "layers": 3, "head_dim": 16, "linear_key_head_dim": 32, "mlp_only_layers": [1],
        "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 5,
        "num_experts_per_tok": 2, "moe_intermediate_size": 36, "shared_expert_intermediate_size": 160,
        "norm_topk_prob": False, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "gemma4, experts beside": {
        "architecture": "gemma4", "layers": 2, "head_dim": 16, "global_head_dim": 24, "sliding_window": 40,
        "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2,
        "moe_intermediate_size": 40, "layer_types": ["sliding_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
}  # fmt: skip
FAMILIES |= WITH_EXPERTS
WITHOUT_GGUF = {
    "granite_hybrid, groups, more taps, no bias, rotations",
    "granite_hybrid, attention alone",
    "qwen3_next, layers without experts",
    "qwen2_moe",
    "smollm3, sliding",
    "gemma2, other scales",
    "qwen3_moe, shares of all, a layer without",
    "llama4, small chunks",
    "lfm2_moe, scores as they are",
}
"""Configurations that llama.cpp's converter has no fields for."""


def draw_vectors(directory: Path) -> Path:
    """Draw norms and biases of a model: transformers begins with ones and zeros."""
    path, generator = directory / "model.safetensors", torch.Generator().manual_seed(0)
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if tensor.dim() == 1 or name.endswith("_bias"):
            tensors[name] = tensor + 0.3 * torch.randn(tensor.shape, generator=generator)
    save_file(tensors, path, {"format": "pt"})
    return directory


_KIND = GGMLQuantizationType.MXFP4


def as_published(directory: Path, quantised: Path, widened: Path) -> None:
    """From a directory with experts in plain numbers: `quantised` as OpenAI has it, and `widened`, with the same values
    in float32.
    """
    blocks, values = dict[str, NDArray[Any]](), dict[str, NDArray[Any]]()
    for name, tensor in arrays.load_file(directory / "model.safetensors").items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            rows = quantize(np.ascontiguousarray(tensor.swapaxes(1, 2)), _KIND)  # [experts, out, in]
            values[name] = np.ascontiguousarray(dequantize(rows, _KIND).swapaxes(1, 2))
            blocks[f"{name}_scales"], blocks[f"{name}_blocks"] = _apart(rows)
        else:
            blocks[name] = values[name] = tensor
    _write(directory, widened, values, {})
    _write(directory, quantised, blocks, {"quantization_config": {"quant_method": "mxfp4"}})


def _apart(rows: Bytes) -> tuple[Bytes, Bytes]:
    """Exponents, and values of which neighbours share a byte; in GGUF values half a block apart do."""
    each = rows.reshape(*rows.shape[:-1], -1, 17)
    values = np.concatenate([each[..., 1:] & 15, each[..., 1:] >> 4], axis=-1)
    return np.ascontiguousarray(each[..., 0]), values[..., 0::2] | values[..., 1::2] << 4


def _write(source: Path, target: Path, tensors: dict[str, NDArray[Any]], more: dict[str, Any]) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    arrays.save_file(tensors, target / "model.safetensors", {"format": "pt"})
    document = json.loads((target / "config.json").read_bytes())
    (target / "config.json").write_text(json.dumps(document | more))


_TEXT = {
    "eos_token_id": 1,  # where transformers saves it: in the part for text alone
    "vocab_size": 384, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "initializer_range": 0.1,
}  # fmt: skip
_VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4,
}  # fmt: skip
_LLAMA4_VISION = {"vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16}
_LLAMA4_TEXT = {"intermediate_size_mlp": 64, "num_local_experts": 3}
_QWEN3_VL_TEXT = {
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 5e6, "mrope_section": [3, 3, 2], "mrope_interleaved": True,
    },
}  # fmt: skip
_QWEN3_VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4, "out_hidden_size": 32,
    "deepstack_visual_indexes": [],
}  # fmt: skip
_GEMMA4_TEXT = {
    "global_head_dim": 24, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 384,
    "enable_moe_block": True, "num_experts": 3, "top_k_experts": 2, "moe_intermediate_size": 20,
}  # fmt: skip
_QWEN3_5_TEXT = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}  # fmt: skip
_QWEN3_5_EXPERTS = {
    "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24,
}  # fmt: skip
_QWEN3_5_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
MODELS: dict[str, Any] = {
    "qwen3_5": lambda: Qwen3_5ForConditionalGeneration(
        Qwen3_5Config(text_config=_TEXT | _QWEN3_5_TEXT, vision_config=_QWEN3_5_VISION)
    ),
    "qwen3_5_moe": lambda: Qwen3_5MoeForConditionalGeneration(
        Qwen3_5MoeConfig(text_config=_TEXT | _QWEN3_5_TEXT | _QWEN3_5_EXPERTS, vision_config=_QWEN3_5_VISION)
    ),
    "gemma3": lambda: Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=_TEXT | {"sliding_window": 30}, vision_config=_VISION, mm_tokens_per_image=4)
    ),
    "gemma4": lambda: Gemma4ForConditionalGeneration(
        Gemma4Config(text_config=_TEXT | _GEMMA4_TEXT, vision_config=None, audio_config=None)
    ),
    "qwen3_vl": lambda: Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(text_config=_TEXT | _QWEN3_VL_TEXT, vision_config=_QWEN3_VISION, tie_word_embeddings=False)
    ),
    "mistral3": lambda: Mistral3ForConditionalGeneration(
        Mistral3Config(text_config=_TEXT | {"model_type": "ministral3"}, vision_config=_VISION)
    ),
    "llama4": lambda: Llama4ForConditionalGeneration(
        Llama4Config(text_config=_TEXT | _LLAMA4_TEXT, vision_config=_VISION | _LLAMA4_VISION)
    ),
}


def make_tiny_multimodal(directory: Path, family: str) -> Any:
    """Write a model of one of `MODELS`, and its tokenizer; returns transformers' model."""
    tokenizer = tiny_tokenizer(384)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MODELS[family]().eval()
    model.generation_config.eos_token_id = None
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return model
