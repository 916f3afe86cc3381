"""Tiny multimodal models, as transformers saves them, of which the part for text is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers.models.gemma3 import Gemma3Config, Gemma3ForConditionalGeneration
from transformers.models.gemma4 import Gemma4Config, Gemma4ForConditionalGeneration
from transformers.models.llama4 import Llama4Config, Llama4ForConditionalGeneration

from tests.fakes.tiny_model import tiny_tokenizer

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
_GEMMA4_TEXT = {
    "global_head_dim": 24, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 384,
    "enable_moe_block": True, "num_experts": 3, "top_k_experts": 2, "moe_intermediate_size": 20,
}  # fmt: skip
MODELS: dict[str, Any] = {
    "gemma3": lambda: Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=_TEXT | {"sliding_window": 30}, vision_config=_VISION, mm_tokens_per_image=4)
    ),
    "gemma4": lambda: Gemma4ForConditionalGeneration(
        Gemma4Config(text_config=_TEXT | _GEMMA4_TEXT, vision_config=None, audio_config=None)
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
