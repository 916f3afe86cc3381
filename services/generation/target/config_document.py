"""config.json of a transformers directory as it stands there, and the architecture that it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.generation.target.errors import ConfigInvalid, ModelNotFound, UnsupportedArchitecture

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def read_document(directory: Path) -> dict[str, Any]:
    """The object in config.json. Raises ModelNotFound where there is none, ConfigInvalid where it is not one."""
    if not directory.is_dir():
        raise ModelNotFound(f"{directory}: no such directory; expected a transformers model directory")
    try:
        document = json.loads((directory / "config.json").read_bytes())
    except FileNotFoundError as error:
        raise ModelNotFound(f"{directory}: no config.json; expected a transformers model directory") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigInvalid(f"{directory}/config.json: not readable as JSON: {error}") from error
    if not isinstance(document, dict):
        raise ConfigInvalid(f"{directory}/config.json: expected a JSON object")
    return document


def architecture_of(document: dict[str, Any]) -> str:
    """Which of ARCHITECTURES it is. Raises UnsupportedArchitecture where it is another, or an option of one is."""
    found = document.get("architectures") or [None]
    if not isinstance(found, list) or not isinstance(found[0], str) or found[0] not in ARCHITECTURES:
        raise UnsupportedArchitecture(
            f"architectures: {found!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    if document.get("hidden_act", "silu") != "silu":
        raise UnsupportedArchitecture(f"hidden_act: {document['hidden_act']!r} is not supported; supported: silu")
    if document.get("quantization_config"):
        raise UnsupportedArchitecture(
            "quantization_config: quantised weights are not supported; use the original model"
        )
    return ARCHITECTURES[found[0]]
