"""Layers as a model's configuration has them, beside their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from services.generation.target.config.config_document import check_size, head_dim, layer_types, positive
from services.generation.target.config.layer_choices import HeadSizes, Temperature
from services.generation.target.config.rope import STILL, Rotation, rotation_of
from services.generation.target.errors import ConfigInvalid, UnsupportedArchitecture
from services.generation.target.families import Clamp, Experts, Family

BY_KIND = "full_attention"
"""A member of rope_parameters where kinds of layers have their own."""


def chunks(config: PreTrainedConfig, place: str) -> tuple[int, ...]:
    if config.attention_chunk_size is None:
        return (0,) * int(config.num_hidden_layers)
    check_size(config.attention_chunk_size, "attention_chunk_size", place)
    size = int(config.attention_chunk_size)
    return tuple(size if kind == "chunked_attention" else 0 for kind in layer_types(config, place))


def by_layer(config: PreTrainedConfig, place: str) -> dict[str, Any]:
    """Differences between layers in Gemma 4, and parts that only it has."""
    inputs, known = config.hidden_size_per_layer_input or 0, config.vocab_size_per_layer_input
    if inputs and known != config.vocab_size:
        raise UnsupportedArchitecture(
            f"{place}: vocab_size_per_layer_input is {known!r}; supported: {config.vocab_size}, as of the embeddings"
        )
    layers, kinds = range(config.num_hidden_layers), layer_types(config, place)
    own = len(layers) - config.num_kv_shared_layers
    if not 0 < own <= len(layers):
        raise ConfigInvalid(f"{place}: num_kv_shared_layers is {config.num_kv_shared_layers} of {len(layers)} layers")
    sizes: list[HeadSizes] = []
    for number, kind in enumerate(kinds):
        each = config.per_layer_config[number]
        for name in ("head_dim", "num_key_value_heads"):
            check_size(getattr(each, name), f"{name} of layer {number}", place)
        if each.head_dim % 2 or config.num_attention_heads % each.num_key_value_heads:
            raise ConfigInvalid(
                f"{place}: layer {number} has heads of {each.head_dim} and {each.num_key_value_heads} key heads; "
                f"expected an even number, and one that {config.num_attention_heads} is a multiple of"
            )
        source = max((n for n in layers[:own] if kinds[n] == kind), default=None) if number >= own else None
        if number >= own and source is None:
            raise ConfigInvalid(f"{place}: num_kv_shared_layers leaves no layer of {kind} whose keys could be shared")
        tied = bool(config.attention_k_eq_v) and kind != "sliding_attention"
        size = HeadSizes(each.num_key_value_heads, each.head_dim, tied, source)
        if source is not None and replace(sizes[source], source=source) != size:
            raise ConfigInvalid(f"{place}: layer {number} reads keys of layer {source}, whose heads have other sizes")
        sizes.append(size)
    wide = 2 if config.use_double_wide_mlp else 1
    inner = [config.intermediate_size * (wide if size.source is not None else 1) for size in sizes]
    return {
        "head_sizes": tuple(sizes), "mlp_sizes": tuple(inner), "intermediate_size": max(inner), "value_norms": True,
        "layer_scalars": True, "layer_inputs": inputs,
    }  # fmt: skip


def temperature(config: PreTrainedConfig, place: str) -> Temperature:
    check_size(config.floor_scale, "floor_scale", place)
    return Temperature(config.floor_scale, positive(config, "attn_scale", place))


def clamp(config: PreTrainedConfig, place: str) -> Clamp:
    return Clamp(positive(config, "swiglu_alpha", place), positive(config, "swiglu_limit", place))


def experts(config: PreTrainedConfig, family: Family, place: str) -> Experts | None:
    if family.experts is None or not getattr(config, "enable_moe_block", True):
        return None
    layers, step = range(config.num_hidden_layers), getattr(config, "decoder_sparse_step", 1)
    size = "moe_intermediate_size" if hasattr(config, "moe_intermediate_size") else "intermediate_size"
    count = "num_experts" if hasattr(config, "num_experts") else "num_local_experts"
    chosen = "top_k_experts" if family.beside else "num_experts_per_tok"
    for name in (size, count, chosen):
        check_size(getattr(config, name, None), name, place)
    experts = int(getattr(config, count))
    if getattr(config, chosen) > experts:
        raise ConfigInvalid(
            f"{place}: {chosen} is {getattr(config, chosen)}; expected at most the {experts} that there are"
        )
    check_size(step, "decoder_sparse_step", place)
    dense = set(getattr(config, "mlp_only_layers", None) or ())
    every = {layer for layer in layers if layer not in dense and (layer + 1) % step == 0}
    sparse = set(getattr(config, "moe_layers", every))
    return Experts(
        names=family.experts,
        layers=tuple(layer in sparse for layer in layers),
        count=experts,
        chosen=getattr(config, chosen),
        size=getattr(config, size),
        normalised=bool(getattr(config, "norm_topk_prob", True)),
        bias=family.expert_bias,
        sigmoid=family.sigmoid_router,
        shared=getattr(config, size) if family.shared_expert else 0,
        beside=family.beside,
    )


def rotations(config: PreTrainedConfig, family: Family, divisors: Sequence[float]) -> tuple[Rotation, ...]:
    layers, context = int(config.num_hidden_layers), int(config.max_position_embeddings)
    parameters, partial = config.rope_parameters or {}, family.partial_rotation
    if BY_KIND in parameters:
        each = config.per_layer_config if family.sizes_by_layer else [config] * layers
        dims = [head_dim(each[number]) for number in range(layers)]
        kinds = list(zip(config.layer_types, dims, strict=False))
        for kind in {kind for kind, _ in kinds}:
            if not isinstance(parameters.get(kind), dict):
                raise ConfigInvalid(f"rope_parameters: {kind} is {parameters.get(kind)!r}; expected an object")
        found = {(kind, dim): rotation_of(parameters[kind], dim, context) for kind, dim in set(kinds)}
        return tuple(found[each] for each in kinds)
    rotation = rotation_of(parameters, head_dim(config), context, divisors, partial=partial)
    rotation = replace(rotation, neighbours=family.neighbours)
    turned = config.no_rope_layers if family.unrotated_layers else [1] * layers  # 0 is a layer without rotation
    if len(turned) < layers:
        raise ConfigInvalid(f"no_rope_layers: {len(turned)} entries; expected one for each of {layers} layers")
    return tuple(rotation if each else STILL for each in turned[:layers])


def windows(config: PreTrainedConfig, family: Family) -> tuple[int, ...]:
    window = getattr(config, "sliding_window", None)
    layers = int(config.num_hidden_layers)
    ignored = not family.windows or getattr(config, "use_sliding_window", True) is False
    if ignored or not window:
        return (0,) * layers
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    return tuple(int(window) if kind == "sliding_attention" else 0 for kind in kinds)
