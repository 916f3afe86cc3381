"""Rotation of a model in a GGUF file, in the terms of transformers' config.json."""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING

from services.generation.target.config.config_document import turns_by_kind
from services.generation.target.errors import UnsupportedArchitecture, WeightsInvalid
from services.generation.target.family import Family
from services.generation.target.files.gguf_file import ROPE_FACTORS, ROPE_LONG, ROPE_SHORT, GgufFile
from services.generation.target.files.gguf_header import GgufMetadata

_UNROTATED = 1e29
"""The least divisor of a frequency that counts as 0."""


def gguf_rope(file: GgufFile, family: Family, head_dim: int) -> dict[str, Any]:
    """`rope_parameters` of config.json. Raises UnsupportedArchitecture, ConfigInvalid or WeightsInvalid."""
    metadata, name = file.metadata, family.gguf_name
    by_kind = turns_by_kind(family, CONFIG_MAPPING[family.name])
    if ROPE_FACTORS in file.names() and (is_longrope(file) or (by_kind and not family.sizes_by_layer)):
        raise UnsupportedArchitecture(
            f"{file.path}: {ROPE_FACTORS}: divisors of frequencies are not supported together with {ROPE_LONG}, nor if "
            "each kind of layer has its own rotation; use another file of the model"
        )
    rope = _longrope(file, name) if is_longrope(file) else _rope(metadata, name, _default_base(family))
    if rope["rope_type"] == "yarn" and not family.yarn_truncated:
        rope["truncate"] = False
    if family.sizes_by_layer:
        rope = _proportional(file, rope, metadata.whole(f"{name}.attention.key_length"))
    rope |= _turned(metadata, family, head_dim)
    return _by_kind(metadata, family, rope) if by_kind else rope


def is_longrope(file: GgufFile) -> bool:
    return not file.names().isdisjoint((ROPE_LONG, ROPE_SHORT))


def _turned(metadata: GgufMetadata, family: Family, head_dim: int) -> dict[str, float]:
    """The rotated share of a head, such that share * head_dim, rounded down, is the number of rotated elements."""
    if not family.partial_rotation:
        return {}
    key = f"{family.gguf_name}.rope.dimension_count"
    turned = metadata.whole(key, head_dim)
    if turned % 2 or not 0 < turned <= head_dim:
        raise metadata.refused(key, f"an even number up to the {head_dim} of a head")
    return {"partial_rotary_factor": 1.0 if turned == head_dim else (turned + 0.5) / head_dim}


def _proportional(file: GgufFile, rope: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """Gemma 4's layers without a window rotate a share of a head: divisors of the other frequencies are 1e30."""
    divisors = gguf_rope_factors(file, head_dim)
    turned = sum(divisor == 1.0 for divisor in divisors)
    unrotated = divisors[turned:]
    first = turned > 0 and set(divisors[:turned]) == {1.0} and all(divisor >= _UNROTATED for divisor in unrotated)
    if not first or rope["rope_type"] != "default":
        raise UnsupportedArchitecture(
            f"{file.path}: {ROPE_FACTORS} and rope.scaling; supported: divisors 1, then 1e30, and no scaling"
        )
    share = 1.0 if not unrotated else (turned + 0.25) / len(divisors)  # multiplied by the size and rounded down
    return {"rope_type": "proportional", "rope_theta": rope["rope_theta"], "partial_rotary_factor": share}


def _by_kind(metadata: GgufMetadata, family: Family, rope: dict[str, Any]) -> dict[str, Any]:
    """`rope_parameters` by kind of layer. Layers with a window are not scaled."""
    own = rope["rope_theta"] if family.rotations_by_kind else 10_000.0
    theta = metadata.real(f"{family.gguf_name}.rope.freq_base_swa", own, above=1.0)
    return {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": theta}}


def _default_base(family: Family) -> float:
    """The base of frequencies of a file without one: Gemma 3's own, for others 10,000 as in llama.cpp."""
    known = CONFIG_MAPPING[family.name].default_theta
    return float(known["global"]) if isinstance(known, dict) else 10_000.0


def _rope(metadata: GgufMetadata, family: str, default_base: float) -> dict[str, Any]:
    """As in llama.cpp, scaling without a type is linear, and a factor of 0 is 1."""
    scaling = f"{family}.rope.scaling."
    kind = metadata.text(scaling + "type", "linear")
    factor = metadata.real(scaling + "factor", metadata.real(f"{family}.rope.scale_linear", 0.0)) or 1.0
    base = metadata.real(f"{family}.rope.freq_base", default_base, above=1.0)
    if kind == "longrope":
        raise WeightsInvalid(
            f"{metadata.path}: {scaling}type is longrope, but {ROPE_LONG} and {ROPE_SHORT}, its divisors, are missing; "
            "use a file from llama.cpp's converter"
        )
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return {"rope_type": "default", "rope_theta": base}
    if kind not in ("linear", "yarn"):
        raise UnsupportedArchitecture(f"{metadata.path}: {scaling}type is {kind!r:.80}; supported: none, linear, yarn")
    if factor < 1.0:
        raise metadata.refused(scaling + "factor", "a number of at least 1")
    parameters = {"rope_type": kind, "rope_theta": base, "factor": factor}
    return parameters | (_yarn(metadata, family) if kind == "yarn" else {})


def _yarn(metadata: GgufMetadata, family: str) -> dict[str, Any]:
    scaling, context = f"{family}.rope.scaling.", metadata.whole(f"{family}.context_length", least=1)
    factor, more = metadata.real(scaling + "yarn_attn_factor", 0.0), dict[str, Any]()
    if factor not in (0.0, 1.0):
        more["attention_factor"] = factor
    if logarithm := metadata.real(scaling + "yarn_log_multiplier", 0.0):
        more |= {"mscale": 1.0, "mscale_all_dim": logarithm}
    if scale := metadata.real(f"{family}.attention.temperature_scale", 0.0):
        more["llama_4_scaling_beta"] = scale
    return more | {
        "original_max_position_embeddings": metadata.whole(scaling + "original_context_length", context, least=1),
        "beta_fast": metadata.real(scaling + "yarn_beta_fast", 32.0, above=0.0),
        "beta_slow": metadata.real(scaling + "yarn_beta_slow", 1.0, above=0.0),
    }


def _longrope(file: GgufFile, family: str) -> dict[str, Any]:
    metadata, scaling = file.metadata, f"{family}.rope.scaling."
    context = metadata.whole(f"{family}.context_length", least=1)
    return {
        "rope_type": "longrope",
        "rope_theta": metadata.real(f"{family}.rope.freq_base", 10_000.0, above=1.0),
        "original_max_position_embeddings": metadata.whole(scaling + "original_context_length", context, least=2),
        "attention_factor": metadata.real(scaling + "attn_factor", 1.0, above=0.0),
        "short_factor": _divisors(file, ROPE_SHORT),
        "long_factor": _divisors(file, ROPE_LONG),
    }


def _divisors(file: GgufFile, name: str) -> list[float]:
    if name not in file.names():
        raise WeightsInvalid(
            f"{file.path}: {name} is missing, the divisors of LongRoPE; expected {ROPE_SHORT} and {ROPE_LONG}: use a "
            "file from llama.cpp's converter"
        )
    found: list[float] = file.tensor(name).values().reshape(-1).tolist()
    return found


def gguf_rope_factors(file: GgufFile, turned: int) -> tuple[float, ...]:
    """The divisor of each rotary frequency, [turned / 2] if `turned` elements of a head rotate, or nothing.

    Raises ConfigInvalid or WeightsInvalid.
    """
    if ROPE_FACTORS not in file.names():
        return ()
    file.check_shape(ROPE_FACTORS, (turned // 2,))
    factors = file.tensor(ROPE_FACTORS)
    factors.check_finite()
    if (factors.values() < 1.0).any():
        raise WeightsInvalid(f"{file.path}: {ROPE_FACTORS} has a factor below 1; the file is damaged")
    return tuple(factors.values().tolist())
