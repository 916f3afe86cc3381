"""Tiny models of Gemma 4, and assistants for them with random weights, as Google publishes them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from services.generation.drafting.mtp.assistant import Assistant, assistant_shapes, load_assistant
from services.generation.drafting.mtp.mtp_drafter import AssistantDrafter
from services.generation.target.config.config import TargetConfig, config_within, read_config
from services.generation.target.families import GEMMA4
from services.generation.target.target import Target
from tests.fakes.converted_gguf import convert
from tests.fakes.tiny_families import FAMILIES

BASES: dict[str, dict[str, Any]] = {
    "own_keys": FAMILIES["gemma4"],
    "shared_keys": FAMILIES["gemma4, shared keys and inputs of layers"] | {"vocab_size_per_layer_input": 320},
}
HIDDEN = 24
_CENTROIDS = 16


def make_assistant_of(base: Path, folder: Path, *, seed: int = 5, **members: Any) -> Path:
    """An assistant with layers of both kinds, sliding and full, and an ordered embedding; `members` of text_config."""
    model = json.loads((base / "config.json").read_text())
    kept = (
        "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim", "per_layer_config", "sliding_window",
        "attention_k_eq_v", "rope_parameters", "rms_norm_eps", "max_position_embeddings", "hidden_activation",
    )  # fmt: skip
    kinds = ["sliding_attention", "full_attention"]
    sizes = model["per_layer_config"][str(model["layer_types"].index("full_attention"))]
    text = {name: model[name] for name in kept} | {
        "model_type": "gemma4_text", "hidden_size": HIDDEN, "intermediate_size": 40, "num_hidden_layers": 2,
        "layer_types": kinds, "num_kv_shared_layers": 2, "per_layer_config": {"1": sizes},
        "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "tie_word_embeddings": True,
        "enable_moe_block": False, "use_double_wide_mlp": False,
    } | members  # fmt: skip
    document = {
        "architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant", "text_config": text,
        "backbone_hidden_size": model["hidden_size"], "use_ordered_embeddings": False,
        "num_centroids": _CENTROIDS, "centroid_intermediate_top_k": 4, "tie_word_embeddings": True,
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(document))
    own = config_within(GEMMA4, text | {"num_kv_shared_layers": 0}, "")
    save_file(_tensors(own, read_config(base), seed), folder / "model.safetensors", {"format": "pt"})
    return folder


def _tensors(own: TargetConfig, base: TargetConfig, seed: int) -> dict[str, torch.Tensor]:
    """Under published names; norms near 1, scalars of layers too."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {
        name.removesuffix(".weight") if name.endswith("layer_scalar.weight") else name: 0.15
        * torch.randn(shape, generator=generator) + (len(shape) == 1)
        for name, shape in assistant_shapes(own, base, has_output=False).items()
    }  # fmt: skip
    order = torch.randperm(own.vocab_size, generator=generator)
    centroids = torch.randn((_CENTROIDS, own.hidden_size), generator=generator)
    return {**drawn, "masked_embedding.token_ordering": order, "masked_embedding.centroids.weight": centroids}


def sidecar_of_assistant(folder: Path, path: Path, **metadata: Any) -> Path:
    """Write an assistant as llama.cpp's converter does; `metadata` without the prefix of the architecture."""
    document, text = json.loads((folder / "config.json").read_text()), path.with_suffix(".text")
    text.mkdir()
    own = document["text_config"] | {"architectures": ["Gemma4ForCausalLM"], "num_kv_shared_layers": 0}
    (text / "config.json").write_text(json.dumps(own))
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {
            f"nextn.{name}" if name.endswith("projection.weight") else name: tensor
            for name, tensor in tensors.items() if not name.startswith("masked_embedding.")
        },
        text / "model.safetensors",
    )  # fmt: skip
    layers = own["num_hidden_layers"]
    fields = {
        "embedding_length_out": document["backbone_hidden_size"], "nextn_predict_layers": layers,
        "attention.shared_kv_layers": layers,
    } | metadata  # fmt: skip

    def change(found: dict[str, Any]) -> None:
        found.update({f"gemma4-assistant.{name}": value for name, value in fields.items()})

    return convert(text, path, change_metadata=change, named="gemma4-assistant")


def assistant(folder: Path, target: Target, *, copies: bool = False) -> AssistantDrafter:
    """A drafter by the assistant in a folder."""
    return AssistantDrafter(loaded(folder, target), target, copies=copies)


def loaded(folder: Path, target: Target) -> Assistant:
    return load_assistant(folder, target.config)
