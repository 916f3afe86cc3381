"""Families by the names in files, and the parts that kolm lacks for other architectures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.generation.target.families import FAMILIES, GEMMA4_ASSISTANT
from services.generation.target.family import Family

ARCHITECTURES = tuple(dict.fromkeys(n for family in FAMILIES for n in (family.architecture, family.multimodal) if n))


MISSING: Mapping[str, str] = {
    "ApertusForCausalLM": "the activation xIELU",
    "ArceeForCausalLM": "the activation relu squared",
    "Cohere2ForCausalLM": "norms that subtract a mean, attention parallel to the MLP",
    "CohereForCausalLM": "norms that subtract a mean, attention parallel to the MLP",
    "DeepseekV2ForCausalLM": "multi-head latent attention",
    "DeepseekV3ForCausalLM": "multi-head latent attention",
    "DeepseekV32ForCausalLM": "multi-head latent attention, sparse attention",
    "FalconForCausalLM": "norms that subtract a mean, attention parallel to the MLP",
    "FalconH1ForCausalLM": "Mamba-2 parallel to attention in one layer",
    "Gemma3nForConditionalGeneration": "four streams in one (AltUp)",
    "Glm4ForCausalLM": "layers with gate and up fused alone",
    "GPTNeoXForCausalLM": "norms that subtract a mean",
    "HunYuanDenseV1ForCausalLM": "norms of heads after their rotation",
    "MambaForCausalLM": "Mamba layers",
    "Mamba2ForCausalLM": "models without attention and MLPs",
    "NemotronForCausalLM": "norms that subtract a mean",
    "NemotronHForCausalLM": "layers of one part each, the activation relu squared",
    "OlmoForCausalLM": "norms that subtract a mean",
    "PhiForCausalLM": "norms that subtract a mean",
    "PhimoeForCausalLM": "norms that subtract a mean",
    "Qwen4ExpForConditionalGeneration": "sparse attention, several streams, n-gram embeddings",
    "StableLmForCausalLM": "norms that subtract a mean",
    "Starcoder2ForCausalLM": "norms that subtract a mean",
}
"""Parts that unsupported architectures would need."""


def named_by(architecture: object, document: Mapping[str, Any]) -> Family | None:
    """The family of this architecture, or None. Families of one multimodal architecture differ by the text part."""
    found = [family for family in FAMILIES if architecture and architecture in (family.architecture, family.multimodal)]
    text = document.get("text_config")
    kind = text.get("model_type") if isinstance(text, dict) else None
    return next((family for family in found if family.name == kind), found[0] if found else None)


def architecture_of(document: Mapping[str, Any]) -> object:
    """The architecture that a config.json names, or that its model type implies."""
    named = document.get("architectures")
    if isinstance(named, list) and named:
        return named[0]
    if named:
        return named
    kind = document.get("model_type")
    for family in FAMILIES:
        if kind == family.name:
            return family.architecture
        if family.multimodal and _spelled(kind) == _spelled(family.multimodal.removesuffix("ForConditionalGeneration")):
            return family.multimodal
    return next((name for name in MISSING if _spelled(name) == f"{_spelled(kind)}forcausallm"), kind)


def _spelled(name: object) -> str:
    """The common form of model types and class names."""
    return str(name).replace("_", "").lower()


def gguf_families(name: str) -> list[Family]:
    """The families whose GGUF files have this general.architecture; none if it is not supported."""
    return [family for family in (*FAMILIES, GEMMA4_ASSISTANT) if family.gguf_name and family.gguf_name == name]
