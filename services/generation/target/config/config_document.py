"""Members of a transformers config.json: the family, sizes and kinds of layers."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from services.generation.target.architectures import ARCHITECTURES, MISSING, architecture_of, named_by
from services.generation.target.config.rope import NO_ROTATION, Rotation, rotation_of
from services.generation.target.errors import ConfigInvalid, ModelNotFound, TargetError, UnsupportedArchitecture
from services.generation.target.family import DELTA, MAMBA, Clamp, Experts, Family, HeadSizes, StateRule, Temperature
from services.generation.target.sizes import LARGEST, MOST_EXPERTS_IN_ALL, STATE_LANES, expected, fits

if TYPE_CHECKING:
    from transformers import PreTrainedConfig  # a datastore is built without it

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}
"""The arithmetic's names of transformers' activation functions."""
BY_KIND = "full_attention"
"""A member of rope_parameters if each kind of layer has its own rotation."""
_MAX_BYTES = 2**24  # far beyond any config.json


def read_json_object(path: Path, folder: str, missing: type[Exception], invalid: type[Exception]) -> dict[str, Any]:
    """Read the JSON object in a file. `folder` describes the expected directory in messages.

    Raises `missing` if there is no such file, and `invalid` if it is too large or contains no JSON object.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise invalid(f"{path}: larger than {_MAX_BYTES} bytes")
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        found = f"no {path.name}" if path.parent.is_dir() else "no such directory"
        raise missing(f"{path.parent}: {found}; expected {folder}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise invalid(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(document, dict):
        raise invalid(f"{path}: expected a JSON object")
    return document


def check_size(value: object, name: str, place: str) -> None:
    """Raise ConfigInvalid unless `value` is a size in range. `name` is the member, optionally followed by its layer."""
    kind = re.split("[ ,]", name)[0]
    if not fits(kind, value):
        raise ConfigInvalid(f"{place}: {name} is {value!r:.80}; expected {expected(kind)}")


def head_dim(config: PreTrainedConfig) -> int:
    return int(getattr(first_layer(config), "head_dim", None) or config.hidden_size // config.num_attention_heads)


def first_layer(config: PreTrainedConfig) -> Any:
    """The configuration with the sizes of heads: the first layer's if layers differ."""
    return config if getattr(config, "per_layer_config", None) is None else config.per_layer_config[0]


def own(config: PreTrainedConfig, name: str, default: Any = None) -> Any:
    """The value of a member that transformers' class of this model defines, `default` for any other member:
    transformers keeps unknown members of a file as attributes and ignores them.
    """
    known = name in type(config).__dataclass_fields__ or name in config.attribute_map
    return getattr(config, name, default) if known else default


def layer_types(config: PreTrainedConfig, place: str) -> list[str]:
    kinds, layers = config.layer_types, int(config.num_hidden_layers)
    if not isinstance(kinds, list | tuple) or len(kinds) < layers or not all(isinstance(kind, str) for kind in kinds):
        raise ConfigInvalid(f"{place}: layer_types is {kinds!r:.80}; expected the kind of each of {layers} layers")
    return list(kinds[:layers])


def positive(config: PreTrainedConfig, name: str, place: str) -> float:
    value = getattr(config, name, None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise ConfigInvalid(f"{place}: {name} is {value!r:.80}; expected a finite number above 0")
    return float(value)


def read_document(directory: Path) -> dict[str, Any]:
    """The object in config.json. Raises ModelNotFound if the file is missing, ConfigInvalid if it has no object."""
    return read_json_object(directory / "config.json", "a transformers model directory", ModelNotFound, ConfigInvalid)


def family_of(document: dict[str, Any]) -> Family:
    """The family of a config.json.

    Raises UnsupportedArchitecture for an architecture or an option that is not implemented, ConfigInvalid for a size
    out of range.
    """
    found = architecture_of(document)
    family = named_by(found, document)
    if not isinstance(found, str) or family is None:
        missing = f": kolm has no {MISSING[found]}" if isinstance(found, str) and found in MISSING else ""
        raise UnsupportedArchitecture(
            f"architectures: {found!r:.80} is not supported{missing}; supported: {', '.join(ARCHITECTURES)}"
        )
    text = document.get("text_config") if found == family.multimodal else document
    if not isinstance(text, dict):
        raise ConfigInvalid(f"text_config: {text!r:.80}; expected an object, as in every {family.multimodal}")
    _check_sizes(text)
    names = ("hidden_act", "hidden_activation")[:: 1 if family.activation == "silu" else -1]  # the second is Gemma's
    name = next((name for name in names if text.get(name)), names[0])
    if (text.get(name) or family.activation) != family.activation:
        raise UnsupportedArchitecture(f"{name}: {text[name]!r} is not supported; supported: {family.activation}")
    supported: dict[str, object] = dict.fromkeys(("use_bidirectional_attention", "conv_bias", "mamba_proj_bias"), False)
    if family.delta:
        supported |= {"attn_output_gate": True, "output_gate_type": "swish"}
    for option, value in supported.items():
        if (text.get(option, value) or False) != value:
            raise UnsupportedArchitecture(f"{option}: {text[option]!r:.80} is not supported; supported: {value!r}")
    _check_kinds(text, family)
    for part in (document, text):
        _check_quantisation(part, family)
    return family


def _check_kinds(text: dict[str, Any], family: Family) -> None:
    known: tuple[str, ...] = ("full_attention", "chunked_attention" if family.chunks else "sliding_attention")
    if family.convolved:
        known = ("full_attention", "conv")
    elif family.delta or family.mamba:
        known = ("full_attention", "linear_attention", *(("attention", "mamba") if family.mamba else ()))
    kinds = text.get("layer_types") or []
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in known:
            raise UnsupportedArchitecture(
                f"layer_types: {kind!r:.80} is not supported in this family; supported: {', '.join(known)}"
            )


def named_family(directory: Path) -> Family | None:
    """The family that config.json names, or None for an unreadable file or an unknown name."""
    try:
        document = read_document(directory)
    except TargetError:
        return None
    return named_by(architecture_of(document), document)


def _check_sizes(text: dict[str, Any]) -> None:
    """Check the members with which transformers computes while it reads a configuration."""
    for name in ("hidden_size", "num_attention_heads", "num_hidden_layers", "head_dim", "no_rope_layer_interval"):
        value = text.get(name, 1)
        if value is None and name == "head_dim":
            continue
        if not fits(name, value):
            raise ConfigInvalid(f"{name}: {value!r:.80}; expected {expected(name)}")
    for name in LARGEST.keys() & text.keys():  # transformers allocates lists of these lengths
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


def _check_quantisation(part: dict[str, Any], family: Family) -> None:
    for name, writer in (("quantization", "MLX, "), ("quantization_config", "")):
        found = part.get(name)
        method = found.get("quant_method") if isinstance(found, dict) else found
        if found and method not in family.quantised:
            supported = "".join(f", or quant_method {each}" for each in family.quantised)
            raise UnsupportedArchitecture(
                f"{name}: {writer}{method or found!r:.80}: these quantised weights are not supported; supported: plain "
                f"numbers{supported}: take the original model, or a GGUF file of it"
            )


def chunks(config: PreTrainedConfig, place: str) -> tuple[int, ...]:
    kinds = layer_types(config, place)
    if config.attention_chunk_size is None and "chunked_attention" not in kinds:
        return (0,) * len(kinds)
    check_size(config.attention_chunk_size, "attention_chunk_size", place)
    size = int(config.attention_chunk_size)
    return tuple(size if kind == "chunked_attention" else 0 for kind in kinds)


def by_layer(config: PreTrainedConfig, place: str) -> dict[str, Any]:
    """Members of TargetConfig for Gemma 4, whose layers have sizes of their own."""
    inputs, known = config.hidden_size_per_layer_input or 0, config.vocab_size_per_layer_input
    if inputs and known != config.vocab_size:
        raise UnsupportedArchitecture(
            f"{place}: vocab_size_per_layer_input is {known!r}; supported: {config.vocab_size}, as of the embeddings"
        )
    layers, kinds = range(config.num_hidden_layers), layer_types(config, place)
    with_keys = len(layers) - config.num_kv_shared_layers
    if not 0 < with_keys <= len(layers):
        raise ConfigInvalid(f"{place}: num_kv_shared_layers is {config.num_kv_shared_layers} of {len(layers)} layers")
    sizes: list[HeadSizes] = []
    for number, kind in enumerate(kinds):
        each = config.per_layer_config[number]
        for name in ("head_dim", "num_key_value_heads"):
            check_size(getattr(each, name), f"{name} of layer {number}", place)
        if each.head_dim % 2 or config.num_attention_heads % each.num_key_value_heads:
            raise ConfigInvalid(
                f"{place}: layer {number} has heads of {each.head_dim} and {each.num_key_value_heads} key heads; "
                f"expected an even size, and a divisor of num_attention_heads {config.num_attention_heads}"
            )
        shares = number >= with_keys
        source = max((n for n in layers[:with_keys] if kinds[n] == kind), default=None) if shares else None
        if shares and source is None:
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


def temperature(config: PreTrainedConfig, family: Family, place: str) -> Temperature | None:
    """The temperature of queries by position, as Llama 4 or Ministral 3 (`family.beta`) configures it."""
    if not family.beta:
        if not (family.tempered and config.attn_temperature_tuning):
            return None
        check_size(config.floor_scale, "floor_scale", place)
        return Temperature(config.floor_scale, positive(config, "attn_scale", place))
    rope: dict[str, Any] = config.rope_parameters or {}
    if not rope.get("llama_4_scaling_beta"):
        return None
    scale, floor = rope["llama_4_scaling_beta"], rope.get("original_max_position_embeddings", 0)
    check_size(floor, "original_max_position_embeddings", place)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale <= sys.float_info.max:
        raise ConfigInvalid(f"{place}: llama_4_scaling_beta is {scale!r:.80}; expected a number above 0")
    return Temperature(floor, float(scale), ahead=0)


def clamp(config: PreTrainedConfig, place: str) -> Clamp:
    return Clamp(positive(config, "swiglu_alpha", place), positive(config, "swiglu_limit", place))


def experts(config: PreTrainedConfig, family: Family, place: str) -> Experts | None:
    if family.experts is None or not own(config, "enable_moe_block", True):
        return None
    if family.dense_mlp and not config.num_local_experts:
        return None
    size = expert_size_field(type(config))
    count = "num_experts" if own(config, "num_experts") is not None else "num_local_experts"
    chosen = "top_k_experts" if family.parallel else "num_experts_per_tok"
    shared = "shared_expert_intermediate_size" if family.shared_gate else size
    for name in (size, count, chosen, *([shared] if family.shared_gate else [])):
        check_size(getattr(config, name, None), name, place)
    experts = int(getattr(config, count))
    if getattr(config, chosen) > experts:
        raise ConfigInvalid(
            f"{place}: {chosen} is {getattr(config, chosen)}; expected at most the {experts} that there are"
        )
    layers = _sparse_layers(config, place)
    if sum(layers) * experts > MOST_EXPERTS_IN_ALL:
        raise ConfigInvalid(
            f"{place}: num_hidden_layers: {sum(layers)} layers of {experts} experts; supported: at most "
            f"{MOST_EXPERTS_IN_ALL} experts in all layers"
        )
    return Experts(
        names=family.experts,
        layers=layers,
        count=experts,
        chosen=getattr(config, chosen),
        size=getattr(config, size),
        normalised=bool(own(config, "norm_topk_prob", True)),
        bias=family.expert_bias,
        sigmoid=family.sigmoid_router,
        scored=family.scored_router,
        choice_bias=family.choice_bias if own(config, "use_expert_bias", False) else "",
        scale=float(np.float32(positive(config, "routed_scaling_factor", place))) if family.scored_router else 1.0,
        shared=int(getattr(config, shared)) if family.shared_expert else 0,
        shared_gate=family.shared_gate,
        parallel=family.parallel,
        dense_mlp=family.dense_mlp,
    )


def expert_size_field(kind: type[PreTrainedConfig]) -> str:
    """The member of a configuration class that contains the size of experts."""
    size = "moe_intermediate_size"
    return size if size in kind.__dataclass_fields__ else "intermediate_size"


def _sparse_layers(config: PreTrainedConfig, place: str) -> tuple[bool, ...]:
    """The layers with experts."""
    step, first = own(config, "decoder_sparse_step", 1), own(config, "num_dense_layers", 0)
    check_size(step, "decoder_sparse_step", place)
    dense, listed = own(config, "mlp_only_layers") or (), own(config, "moe_layers")
    every = [
        layer not in dense and (layer + 1) % step == 0 and layer >= first for layer in range(config.num_hidden_layers)
    ]
    return tuple(every if listed is None else [layer in listed for layer in range(len(every))])


def turns_by_kind(family: Family, kind: type[PreTrainedConfig]) -> bool:
    """Whether rope_parameters of such a model has one object for each kind of layer."""
    return family.rotations_by_kind or family.sizes_by_layer or isinstance(kind.default_theta, dict)


def rotations(config: PreTrainedConfig, family: Family, divisors: Sequence[float]) -> tuple[Rotation, ...]:
    layers, context = int(config.num_hidden_layers), int(config.max_position_embeddings)
    parameters, partial = config.rope_parameters or {}, family.partial_rotation
    nested = [name for name, value in parameters.items() if isinstance(value, dict) or name.endswith("_attention")]
    if nested and not turns_by_kind(family, type(config)):
        raise UnsupportedArchitecture(
            f"rope_parameters: {', '.join(nested):.80} with a rotation each; supported in this family: one rope_type "
            "and rope_theta for all layers"
        )
    if BY_KIND in parameters:
        each = config.per_layer_config if family.sizes_by_layer else [config] * layers
        dims = [head_dim(each[number]) for number in range(layers)]
        kinds = list(zip(layer_types(config, "config.json"), dims, strict=True))
        for kind in {kind for kind, _ in kinds}:
            if not isinstance(parameters.get(kind), dict):
                raise ConfigInvalid(f"rope_parameters: {kind} is {parameters.get(kind)!r}; expected an object")
        found = {(kind, dim): rotation_of(parameters[kind], dim, context) for kind, dim in set(kinds)}
        return tuple(found[each] for each in kinds)
    rotation = rotation_of(parameters, head_dim(config), context, divisors, partial=partial)
    rotation = replace(rotation, interleaved=family.interleaved)
    turned = config.no_rope_layers if family.unrotated_layers else [1] * layers  # 0 is a layer without rotation
    if family.mamba and config.position_embedding_type != "rope":
        turned = [0] * layers
    if family.rotated_windows and config.sliding_window:
        turned = [kind == "sliding_attention" for kind in layer_types(config, "config.json")]
    if not isinstance(turned, list) or len(turned) < layers:
        raise ConfigInvalid(f"no_rope_layers: {turned!r:.80}; expected 0 or 1 for each of {layers} layers")
    return tuple(rotation if each else NO_ROTATION for each in turned[:layers])


def multipliers(config: PreTrainedConfig, place: str) -> dict[str, Any]:
    """Granite's factors, rounded to float32 as in a GGUF file."""
    names = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    embedding, query, residual, logits = (float(np.float32(positive(config, name, place))) for name in names)
    return {
        "embedding_scale": embedding, "query_scale": query, "residual_scale": residual,
        "logit_scale": float(np.float32(1 / logits)),
    }  # fmt: skip


def inner_field(config: PreTrainedConfig) -> str:
    """The member with the size of MLPs or, in models with experts alone, of experts."""
    known = "intermediate_size" in type(config).__dataclass_fields__
    return "intermediate_size" if known else "moe_intermediate_size"


def inner_size(config: PreTrainedConfig, place: str) -> int:
    """The size of MLPs. LFM2 derives it from another number."""
    dense = own(config, "shared_intermediate_size", getattr(config, inner_field(config)))
    size = int(own(config, "intermediate_size_mlp", dense))
    if not own(config, "block_auto_adjust_ff_dim", False):
        return size
    factor = positive(config, "block_ffn_dim_multiplier", place) if config.block_ffn_dim_multiplier else 1.0
    check_size(config.block_multiple_of, "block_multiple_of", place)
    whole = min(factor * int(2 * size / 3), 2 * LARGEST["intermediate_size"])  # finite, and refused if it is so large
    multiple = int(config.block_multiple_of)
    size = -(-int(whole) // multiple) * multiple
    check_size(size, "intermediate_size, of block_ffn_dim_multiplier and block_multiple_of,", place)
    return size


def convolutions(config: PreTrainedConfig, place: str) -> tuple[int, ...]:
    """Taps of each layer that is a convolution, 0 for attention."""
    check_size(config.conv_L_cache, "conv_L_cache", place)
    return tuple(config.conv_L_cache if kind == "conv" else 0 for kind in layer_types(config, place))


def state_rule(config: PreTrainedConfig, family: Family, place: str) -> StateRule | None:
    """The layers that fold a state and the sizes of its heads, or None if all layers attend."""
    if not (family.delta or family.mamba) or "linear_attention" not in layer_types(config, place):
        return None
    if family.delta:
        names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
        rule = _state_rule(DELTA, config, tuple(f"linear_{name}" for name in names), place)
        return replace(rule, tiled=family.tiled, joined=family.joined)
    if config.time_step_limit not in (None, (0.0, math.inf)):
        raise UnsupportedArchitecture(
            f"{place}: time_step_limit is {config.time_step_limit!r}; supported: [0.0, Infinity]"
        )
    names = ("n_groups", "n_heads", "d_state", "d_head", "d_conv")
    rule = _state_rule(MAMBA, config, tuple(f"mamba_{name}" for name in names), place)
    return replace(rule, biased=bool(config.mamba_conv_bias))


def _state_rule(module: str, config: PreTrainedConfig, names: tuple[str, ...], place: str) -> StateRule:
    """`names`: members with the numbers of key and value heads, with their sizes, and with the taps."""
    for name in names:
        check_size(getattr(config, name, None), name, place)
    key_heads, value_heads, key_dim, value_dim, taps = (int(getattr(config, name)) for name in names)
    for name, dim in zip(names[2:4], (key_dim, value_dim), strict=True):
        if dim % STATE_LANES:
            raise UnsupportedArchitecture(f"{place}: {name} is {dim}; supported: multiples of {STATE_LANES}")
    if value_heads % key_heads:
        raise ConfigInvalid(f"{place}: {names[1]} {value_heads} is not a multiple of {names[0]} {key_heads}")
    layers = tuple(kind == "linear_attention" for kind in layer_types(config, place))
    return StateRule(module, layers, key_heads, value_heads, key_dim, value_dim, taps)


def windows(config: PreTrainedConfig, family: Family, place: str) -> tuple[int, ...]:
    window, kinds = own(config, "sliding_window"), getattr(config, "layer_types", None)
    layers, used = int(config.num_hidden_layers), own(config, "use_sliding_window", True)
    if not family.windows or used is False or not window:
        if family.windows and isinstance(kinds, list | tuple) and "sliding_attention" in kinds[:layers]:
            raise ConfigInvalid(
                f"{place}: layer_types has sliding_attention, but sliding_window is {window!r:.80} and "
                f"use_sliding_window {used!r}; expected a window that is used, or full_attention in every layer"
            )
        return (0,) * layers
    check_size(window, "sliding_window", place)
    kinds = ["sliding_attention"] * layers if own(config, "layer_types") is None else layer_types(config, place)
    return tuple(int(window) if kind == "sliding_attention" else 0 for kind in kinds)
