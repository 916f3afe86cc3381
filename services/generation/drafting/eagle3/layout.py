"""kolm's own layout of a head: SafeAILab's key names, and a config.json that leaves nothing to be guessed.

A folder with config.json and model.safetensors. Published heads leave choices to the engine that loads them: layers,
norms, embeddings. Engines choose differently. Here every choice is a member.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.generation.drafting.eagle3.config import HeadConfig, HeadConfigInvalid, HeadWeightsInvalid, head_shapes

if TYPE_CHECKING:  # a server needs none
    import torch

LAYOUT = "kolm.eagle3.v1"
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"

# Member of config.json: (attribute of HeadConfig, type). All are required, and no other is allowed.
_MEMBERS: dict[str, tuple[str, type]] = {
    "num_hidden_layers": ("layers", int),
    "hidden_size": ("hidden_size", int),
    "target_hidden_size": ("target_hidden_size", int),
    "intermediate_size": ("intermediate_size", int),
    "num_attention_heads": ("heads", int),
    "num_key_value_heads": ("kv_heads", int),
    "head_dim": ("head_dim", int),
    "rms_norm_eps": ("norm_epsilon", float),
    "vocab_size": ("vocab_size", int),
    "draft_vocab_size": ("draft_vocab_size", int),
    "feature_layers": ("feature_layers", list),
    "rope_parameters": ("rope", dict),
    "max_position_embeddings": ("trained_length", int),
    "attention_bias": ("attention_bias", bool),
    "output_bias": ("output_bias", bool),
    "mlp_bias": ("mlp_bias", bool),
    "head_norms": ("head_norms", bool),
    "own_embeddings": ("own_embeddings", bool),
    "norm_before_residual": ("norm_before_residual", bool),
    "norm_before_fc": ("norm_before_fc", bool),
    "fc_norm": ("fc_norm", bool),
    "norm_output": ("norm_output", bool),
    "hidden_act": ("hidden_act", str),
}
_FIXED = {"layout": LAYOUT, "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}


def config_document(config: HeadConfig) -> dict[str, Any]:
    """config.json of a head in kolm's layout."""
    values = {member: getattr(config, attribute) for member, (attribute, _) in _MEMBERS.items()}
    return {**_FIXED, **values, "feature_layers": list(config.feature_layers)}


def parse_config(document: dict[str, Any]) -> HeadConfig:
    """Raises HeadConfigInvalid, naming what is missing, unknown, mistyped or out of range."""
    expected = _MEMBERS.keys() | _FIXED.keys()
    missing, unknown = sorted(expected - document.keys()), sorted(document.keys() - expected)
    if missing or unknown:
        raise HeadConfigInvalid(f"config.json: missing {missing}, unknown {unknown}; {LAYOUT} has {sorted(expected)}")
    for member, value in _FIXED.items():
        if document[member] != value:
            raise HeadConfigInvalid(f"config.json: {member} is {document[member]!r}; expected {value!r}")
    values = {attribute: typed(document, member, kind) for member, (attribute, kind) in _MEMBERS.items()}
    values["feature_layers"] = layer_numbers(document, "feature_layers")
    config = HeadConfig(**values)
    config.check()
    return config


def typed(document: dict[str, Any], member: str, kind: type) -> Any:
    """`document[member]`, of exactly that kind; a whole number will do for a real one."""
    value = document[member]
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise HeadConfigInvalid(f"config.json: {member} is {value!r}; expected {kind.__name__}")
    return value


def layer_numbers(document: dict[str, Any], member: str) -> tuple[int, ...]:
    value = document[member]
    if not isinstance(value, list) or not value or any(type(layer) is not int for layer in value):
        raise HeadConfigInvalid(f"config.json: {member} is {value!r}; expected a list of layer numbers")
    return tuple(value)


def write_head(directory: Path, config: HeadConfig, tensors: dict[str, torch.Tensor]) -> None:
    """Write a head in kolm's layout.

    `tensors` are the floats that `head_shapes(config)` lists, and `d2t` [draft_vocab_size] int64: target id = draft id
    + d2t[draft id]. `t2d` [vocab_size] bool, which other engines ask for, is derived.

    Raises:
        HeadWeightsInvalid: a tensor is missing, unknown or of another shape.
    """
    import torch
    from safetensors.torch import save_file

    config.check()
    shapes = {**head_shapes(config), "d2t": (config.draft_vocab_size,)}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = sorted(name for name in shapes.keys() | found.keys() if shapes.get(name) != found.get(name))
    if wrong:
        raise HeadWeightsInvalid(f"tensors {wrong} are missing, unknown or of another shape than the config says")
    known = torch.zeros(config.vocab_size, dtype=torch.bool)
    known[torch.arange(config.draft_vocab_size) + tensors["d2t"]] = True
    directory.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in {**tensors, "t2d": known}.items()}, directory / WEIGHTS_FILE
    )
    (directory / CONFIG_FILE).write_text(json.dumps(config_document(config), indent=2) + "\n")
