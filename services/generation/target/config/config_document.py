"""config.json of a transformers directory as it stands there, and the family that it names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.generation.target.errors import ConfigInvalid, ModelNotFound, TargetError, UnsupportedArchitecture
from services.generation.target.families import BY_ARCHITECTURE, Family
from services.generation.target.files.json_object import read_json_object
from services.generation.target.sizes import LARGEST, expected, fits

if TYPE_CHECKING:
    from transformers import PreTrainedConfig  # a datastore is built without it


def check_size(value: object, name: str, place: str) -> None:
    """`name` may say behind a space whose it is."""
    kind = name.partition(" ")[0]
    if not fits(kind, value):
        raise ConfigInvalid(f"{place}: {name} is {value!r:.80}; expected {expected(kind)}")


def head_dim(config: PreTrainedConfig) -> int:
    return int(getattr(first(config), "head_dim", None) or config.hidden_size // config.num_attention_heads)


def first(config: PreTrainedConfig) -> Any:
    """The configuration that has the sizes of heads: of the first layer, where layers differ."""
    return config if getattr(config, "per_layer_config", None) is None else config.per_layer_config[0]


def layer_types(config: PreTrainedConfig, place: str) -> list[str]:
    kinds = list(config.layer_types)
    if len(kinds) < config.num_hidden_layers:
        raise ConfigInvalid(f"{place}: layer_types has {len(kinds)} entries; expected {config.num_hidden_layers}")
    return kinds[: config.num_hidden_layers]


def positive(config: PreTrainedConfig, name: str, place: str) -> float:
    value = getattr(config, name, None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigInvalid(f"{place}: {name} is {value!r}; expected a number above 0")
    return float(value)


ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}
"""The arithmetic's names of transformers' activation functions."""


def read_document(directory: Path) -> dict[str, Any]:
    """The object in config.json. Raises ModelNotFound where there is none, ConfigInvalid where it is not one."""
    return read_json_object(directory / "config.json", "a transformers model directory", ModelNotFound, ConfigInvalid)


def family_of(document: dict[str, Any]) -> Family:
    """Raises UnsupportedArchitecture where it is none of the table's, or asks for what is not implemented."""
    found = document.get("architectures") or [None]
    if not isinstance(found, list) or not isinstance(found[0], str) or found[0] not in BY_ARCHITECTURE:
        raise UnsupportedArchitecture(
            f"architectures: {found!r} is not supported; supported: {', '.join(BY_ARCHITECTURE)}"
        )
    family = BY_ARCHITECTURE[found[0]]
    text = document.get("text_config") if found[0] == family.multimodal else document
    if not isinstance(text, dict):
        raise ConfigInvalid(f"text_config: {text!r:.80}; expected an object, as in every {family.multimodal}")
    _check_sizes(text)
    name = "hidden_activation" if text.get("hidden_activation") else "hidden_act"
    if (text.get(name) or family.activation) != family.activation:
        raise UnsupportedArchitecture(f"{name}: {text[name]!r} is not supported; supported: {family.activation}")
    if text.get("use_bidirectional_attention"):
        raise UnsupportedArchitecture("use_bidirectional_attention: true is not supported; supported: false")
    _check_quantisation(document, family)
    return family


def named_family(directory: Path) -> Family | None:
    """The family that config.json names, or none where it names none of the table's."""
    try:
        found = read_document(directory).get("architectures")
    except TargetError:
        return None
    named = found[0] if isinstance(found, list) and found else None
    return BY_ARCHITECTURE.get(named) if isinstance(named, str) else None


def _check_sizes(text: dict[str, Any]) -> None:
    """Numbers that transformers divides by, and kinds of layers whose rotations it reads at once."""
    for name in ("hidden_size", "num_attention_heads", "num_hidden_layers", "head_dim", "no_rope_layer_interval"):
        value = text.get(name, 1)
        if value is None and name == "head_dim":
            continue
        if not fits(name, value):
            raise ConfigInvalid(f"{name}: {value!r:.80}; expected {expected(name)}")
    for name in LARGEST.keys() & text.keys():  # which transformers may make lists of
        if isinstance(text[name], int | float) and text[name] > LARGEST[name]:
            raise ConfigInvalid(f"{name}: {text[name]!r:.80}; expected {expected(name)}")
    found = text.get("rope_parameters")
    rotations: dict[str, Any] = found if isinstance(found, dict) else {}
    for kind in ("full_attention", "sliding_attention"):
        if not isinstance(rotations.get(kind, {}), dict):
            raise ConfigInvalid(f"rope_parameters: {kind} is {rotations[kind]!r}; expected an object")
    for name in ("factor", "original_max_position_embeddings"):
        if rotations.get(name, 1) == 0:
            raise ConfigInvalid(f"rope_parameters: {name} is 0; expected a number above 0")
    if not isinstance(text.get("per_layer_config"), dict | None):
        raise ConfigInvalid(f"per_layer_config: {text['per_layer_config']!r:.80}; expected an object")


def _check_quantisation(document: dict[str, Any], family: Family) -> None:
    found = document.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, dict) else found
    if found and method not in family.quantised:
        supported = f"; supported in this family: {', '.join(family.quantised)}" if family.quantised else ""
        raise UnsupportedArchitecture(
            f"quantization_config: quantised weights ({method}) are not supported; use the original model{supported}"
        )
