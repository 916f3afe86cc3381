"""config.json of a transformers directory as it stands there, and the family that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from services.generation.target.errors import ConfigInvalid, ModelNotFound, TargetError, UnsupportedArchitecture
from services.generation.target.families.family import Family
from services.generation.target.families.table import BY_ARCHITECTURE
from services.generation.target.files.json_object import read_json_object

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


def _check_quantisation(document: dict[str, Any], family: Family) -> None:
    found = document.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, dict) else found
    if found and method not in family.quantised:
        supported = f"; supported in this family: {', '.join(family.quantised)}" if family.quantised else ""
        raise UnsupportedArchitecture(
            f"quantization_config: quantised weights ({method}) are not supported; use the original model{supported}"
        )
