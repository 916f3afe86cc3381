"""The configuration of a model in a GGUF file, in the terms of transformers' config.json."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from services.generation.target.config.config_document import expert_size_field
from services.generation.target.config.end_tokens import ends_by_name, ends_of_messages, usual_piece
from services.generation.target.config.gguf_rope import gguf_rope, gguf_rope_factors, is_longrope
from services.generation.target.config.rope import inverse_root
from services.generation.target.errors import ConfigInvalid, UnsupportedArchitecture
from services.generation.target.families import GEMMA4_ASSISTANT
from services.generation.target.family import Family
from services.generation.target.files.gguf_file import GgufFile
from services.generation.target.files.gguf_header import GgufMetadata, gguf_sizes

_log = logging.getLogger(__name__)

_NEUTRAL: dict[str, tuple[float, ...]] = {
    "expert_count": (0,),
    "expert_shared_count": (0,),
    "expert_group_count": (0, 1),
    "expert_weights_scale": (0, 1),
    "expert_gating_func": (0, 1),
    "attention.scale": (0,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.causal": (1,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0, 1),
    "rope.scaling.attn_factor": (0, 1),
    "rope.scaling.yarn_attn_factor": (0, 1),
    "rope.scaling.yarn_ext_factor": (-1, 1),
    "rope.scaling.yarn_log_multiplier": (0,),
    "rope.scaling.mscale": (0, 1),
}
"""Options that are not implemented, with the values under which they change nothing."""
_WITHOUT_EFFECT = {
    "attention.head_dim", "attention.layer_norm_epsilon", "rope.dimension_sections", "rope.mrope_section",
    "rope.mrope_interleaved", "rope.scaling.finetuned", "rope.scaling.original_context_length",
}  # fmt: skip
"""Options that repeat others, or change nothing in models for text without scaling."""
_ENDS = ("eos", "eot", "eom")
_STATE = ("group_count", "time_step_rank", "state_size", "inner_size", "conv_kernel")
"""Sizes of states: key heads, value heads, elements of a key and of all values, and taps of the convolutions."""
_CONTROL, _USER_DEFINED = 3, 4
"""Token types of special tokens, and of special tokens that are visible in output."""
_SIGMOID = 2  # expert_gating_func
_MAVERICK_EXPERTS = 128  # of Llama 4 Maverick, which has no head norms


def _sizes_by_layer(file: GgufFile, family: Family, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Members of config.json for Gemma 4. Layers with a window have heads of other sizes; the last layers read the keys
    of earlier ones and have, in some models, MLPs twice as wide.

    Raises ConfigInvalid or UnsupportedArchitecture; the message names the field.
    """
    metadata, name, layers = file.metadata, family.gguf_name, sizes["num_hidden_layers"]
    pattern = f"{name}.attention.sliding_window_pattern"
    windows = [bool(each) for each in metadata.per_layer(pattern, layers, least=0)]
    if windows[-1]:
        raise metadata.refused(pattern, "true or false for each layer, false for the last")
    window = metadata.whole(f"{name}.attention.sliding_window", least=1) if any(windows) else None
    key_heads = metadata.per_layer(f"{name}.attention.head_count_kv", layers)
    shared = metadata.whole(f"{name}.attention.shared_kv_layers", 0)
    inner = metadata.per_layer(f"{name}.feed_forward_length", layers)
    wide = inner[-1] != inner[0]
    if inner != [inner[0] * (2 if wide and number >= layers - shared else 1) for number in range(layers)]:
        raise UnsupportedArchitecture(
            f"{file.path}: {name}.feed_forward_length is {inner}; supported: one size, or twice that in the last "
            f"{shared} layers, which share keys"
        )
    whole = _head_dim(metadata, family, "", metadata.whole(f"{name}.attention.key_length", least=1))
    windowed = _head_dim(metadata, family, "_swa", metadata.whole(f"{name}.attention.key_length_swa", whole, least=1))
    values = f"model.layers.{windows.index(False)}.self_attn.v_proj.weight"
    return {
        "layer_types": ["sliding_attention" if each else "full_attention" for each in windows],
        "sliding_window": window,
        "intermediate_size": inner[0],
        "use_double_wide_mlp": wide,
        "num_kv_shared_layers": 0 if family is GEMMA4_ASSISTANT else shared,
        "attention_k_eq_v": values not in file.names(),
        "num_key_value_heads": key_heads[0],
        "head_dim": windowed,
        "per_layer_config": {
            number: {"head_dim": windowed if each else whole, "num_key_value_heads": key_heads[number]}
            for number, each in enumerate(windows)
        },
        "hidden_size_per_layer_input": metadata.whole(f"{name}.embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": sizes["vocab_size"],
    }


def _head_dim(metadata: GgufMetadata, family: Family, kind: str, head_dim: int) -> int:
    """The size of a key. Values must have the same size, and, without partial rotation, the rotated part."""
    for option in ("attention.value_length", *(() if family.partial_rotation else ("rope.dimension_count",))):
        name = f"{family.gguf_name}.{option}{kind}"
        found = metadata.whole(name, head_dim)
        if found != head_dim:
            raise UnsupportedArchitecture(
                f"{metadata.path}: {name} is {found}; supported: the {head_dim} of a query head"
            )
    return head_dim


@dataclass(frozen=True, slots=True)
class GgufConfig:
    """transformers' configuration of a model in a GGUF file, and its properties that are not members of it."""

    family: Family
    config: PreTrainedConfig
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    rope_factors: tuple[float, ...]
    """The divisor of each rotary frequency, [head_dim / 2], or nothing."""
    eos_token_ids: tuple[int, ...]
    joined_end_ids: tuple[int, ...]


def read_gguf_config(file: GgufFile, family: Family | None = None) -> GgufConfig:
    """Read the configuration of a GGUF file. `family`: GEMMA4_ASSISTANT for an assistant, of which nothing is shared.

    Raises UnsupportedArchitecture, ConfigInvalid or WeightsInvalid; the message names the file and the field.
    """
    metadata = file.metadata
    family = family or _family(file)
    name = family.gguf_name
    longrope = is_longrope(file)
    _check_neutral(metadata, name, _read(metadata, family, longrope))
    sizes = _sizes(file, family)
    rope = gguf_rope(file, family, sizes["head_dim"])
    share = rope.get("partial_rotary_factor", 1.0)
    windows = _window(metadata, name, sizes["num_hidden_layers"], rotated_windows=family.rotated_windows)
    members = sizes | windows | _scaled(metadata, family, sizes)
    members |= _experts(metadata, family, file.layers) | {"rope_parameters": rope}
    if longrope:  # transformers reads it here, too
        members["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    ends = _ends(metadata, members["vocab_size"])
    joined = tuple(sorted(_usual_ends(metadata, members["vocab_size"]) - {*ends}))
    _warn_of_unread(file.path, tuple(_unread(metadata, name)))
    return GgufConfig(
        family=family,
        config=_transformers_config(file.path, family, members),
        attention_bias=_has(file, "self_attn.q_proj.bias"),
        output_bias=_has(file, "self_attn.o_proj.bias"),
        mlp_bias=_has(file, "mlp.gate_proj.bias"),
        rope_factors=() if family.sizes_by_layer else gguf_rope_factors(file, int(members["head_dim"] * share)),
        eos_token_ids=tuple(sorted((*ends, *joined))),
        joined_end_ids=joined,
    )


def _unread(metadata: GgufMetadata, name: str) -> Iterator[str]:
    """Options of attention and rotation that may change the pass and were not read."""
    for key in metadata.unread(f"{name}.attention.", f"{name}.rope."):
        if key.removeprefix(f"{name}.") not in _WITHOUT_EFFECT:
            yield key


@cache
def _warn_of_unread(path: Path, unread: tuple[str, ...]) -> None:
    """Log once per process and file."""
    if unread:
        _log.warning(
            "ignoring metadata of %s: %s; if the model needs it, answers are wrong: use a file from llama.cpp's "
            "converter", path, ", ".join(unread),
        )  # fmt: skip


def _family(file: GgufFile) -> Family:
    """The family of the file. Families of the same name differ by experts and the window."""
    metadata, found = file.metadata, file.families
    name = found[0].gguf_name
    experts = metadata.whole(f"{name}.expert_count", 0) > 0
    found = [family for family in found if bool(family.experts) == experts] or found
    windowed = metadata.whole(_window_field(name), 0) > 0
    return next((family for family in found if family.windows == windowed), found[0])


def _read(metadata: GgufMetadata, family: Family, longrope: bool) -> set[str]:
    """Options that are implemented for this model."""
    experts = {"expert_count"} if family.experts else set()
    shared = {"expert_shared_count", "expert_gating_func"} if family.shared_expert else set()
    if family.scored_router:
        shared = {"expert_gating_func", "expert_weights_scale"}
    if family.beta:
        shared.add("rope.scaling.yarn_log_multiplier")
    if metadata.text(f"{family.gguf_name}.rope.scaling.type", "") == "yarn":
        shared.add("rope.scaling.yarn_attn_factor")
    multipliers = (
        {"attention.scale", "embedding_scale", "residual_scale", "logit_scale"} if family.multipliers else set()
    )
    return experts | shared | multipliers | ({"rope.scaling.attn_factor"} if longrope else set())


def _check_neutral(metadata: GgufMetadata, family: str, read: set[str]) -> None:
    for option, neutral in _NEUTRAL.items():
        if option in read:
            continue
        value = metadata.get(f"{family}.{option}", neutral[0])
        if not isinstance(value, int | float) or value not in neutral:
            raise UnsupportedArchitecture(
                f"{metadata.path}: {family}.{option} is {value!r:.80}, which is not supported"
            )


def _sizes(file: GgufFile, of: Family) -> dict[str, Any]:
    """Members of config.json. Sizes for which memory is allocated before weights are read are compared with tensors."""
    metadata, sizes, family = file.metadata, gguf_sizes(file.metadata), of.gguf_name
    sizes["num_hidden_layers"] = file.layers
    hidden, layers = sizes["hidden_size"], file.layers
    if layers < 1:
        raise metadata.refused(f"{family}.nextn_predict_layers", f"fewer than {family}.block_count")
    if layers > len(file.names()):
        raise ConfigInvalid(f"{file.path}: {family}.block_count is {layers}, but there are {len(file.names())} tensors")
    heads = metadata.same_for_all(f"{family}.attention.head_count", layers)
    own = _sizes_by_layer(file, of, sizes) if of.sizes_by_layer else _uniform_sizes(metadata, of, heads, sizes)
    head_dim = own["per_layer_config"][0]["head_dim"] if of.sizes_by_layer else own["head_dim"]
    first = own["layer_types"].index("full_attention") if of.convolved or of.delta or of.mamba else 0
    module, shared = ("qkv_proj", 2 * own["num_key_value_heads"]) if of.fused else ("q_proj", heads * of.gated)
    file.check_shape(f"model.layers.{first}.self_attn.{module}.weight", ((heads + shared) * head_dim, hidden))
    _check_tokens(metadata, sizes["vocab_size"])
    return (
        sizes
        | own
        | {
            "num_attention_heads": heads,
            "norm_eps" if of.convolved else "rms_norm_eps": _epsilon(metadata, family),
            "max_position_embeddings": metadata.whole(f"{family}.context_length", least=1),
            "tie_word_embeddings": "lm_head.weight" not in file.names(),
        }
    )


def _epsilon(metadata: GgufMetadata, family: str) -> float:
    key = f"{family}.attention.layer_norm_rms_epsilon"
    if key not in metadata:
        raise ConfigInvalid(
            f"{metadata.path}: {key} is missing, which older converters of Ollama left out; expected the epsilon of "
            "norms: use a file from llama.cpp's converter, for example hf:OWNER/REPOSITORY"
        )
    return metadata.real(key, above=0.0)


def _uniform_sizes(metadata: GgufMetadata, family: Family, heads: int, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Members of config.json for a model whose layers of a kind have the same sizes."""
    name, hidden = family.gguf_name, sizes["hidden_size"]
    head_dim = _head_dim(metadata, family, "", metadata.whole(f"{name}.attention.key_length", hidden // heads, least=1))
    if family.convolved:
        return {"head_dim": head_dim} | _convolved(metadata, name, sizes["num_hidden_layers"])
    if family.mamba:
        return {"head_dim": head_dim} | _mamba(metadata, name, sizes)
    layers = sizes["num_hidden_layers"]
    own = _states(metadata, name, layers) if family.delta else {}
    return own | {
        "intermediate_size": _inner(metadata, family, layers),
        "num_key_value_heads": _kv_heads(metadata, name, heads, own.get("layer_types") or ["full_attention"] * layers),
        "head_dim": head_dim,
    }


def _kv_heads(metadata: GgufMetadata, name: str, heads: int, kinds: Sequence[str]) -> int:
    """Key heads of the attention layers among `kinds`. Ollama's converter writes 0 for other layers."""
    key = f"{name}.attention.head_count_kv"
    each = metadata.per_layer(key, len(kinds), heads, least=0)
    found = {number for number, kind in zip(each, kinds, strict=True) if kind == "full_attention"}
    if len(found) != 1 or found == {0}:
        raise metadata.refused(key, "one number for all layers that attend")
    return found.pop()


def _inner(metadata: GgufMetadata, family: Family, layers: int) -> int:
    """The size of MLPs, or of experts if the file has no MLPs."""
    name = family.gguf_name
    size = metadata.whole(f"{name}.expert_feed_forward_length", 0) if family.shared_gate else 0
    return metadata.same_for_all(f"{name}.feed_forward_length", layers, size or None)


def _states(metadata: GgufMetadata, name: str, layers: int) -> dict[str, Any]:
    """The layers that fold a state by the delta rule, and its sizes, which GGUF has under Mamba's names."""
    key, interval = f"{name}.attention.recurrent_layers", f"{name}.full_attention_interval"
    every = metadata.whole(interval, 4, least=1)
    folding = metadata.per_layer(key, layers, least=0) if key in metadata else [(n + 1) % every for n in range(layers)]
    if all(folding):
        raise metadata.refused(key if key in metadata else interval, f"one of {layers} layers that attends")
    key_heads, value_heads, key_dim, inner, taps = (metadata.whole(f"{name}.ssm.{each}", least=1) for each in _STATE)
    if inner % value_heads:
        raise metadata.refused(f"{name}.ssm.inner_size", f"a multiple of the {value_heads} of ssm.time_step_rank")
    return {
        "layer_types": ["linear_attention" if each else "full_attention" for each in folding],
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": inner // value_heads,
        "linear_conv_kernel_dim": taps,
    }


def _mamba(metadata: GgufMetadata, name: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Granite 4. As in llama.cpp, heads are rotated only if rope.scaling.finetuned is true or missing."""
    groups, heads, state, inner, taps = (metadata.whole(f"{name}.ssm.{each}", least=1) for each in _STATE)
    if inner % heads or inner % sizes["hidden_size"]:
        raise metadata.refused(f"{name}.ssm.inner_size", f"a multiple of {heads} heads and of the embeddings' size")
    size = metadata.same_for_all(f"{name}.feed_forward_length", sizes["num_hidden_layers"])
    shared = f"{name}.expert_shared_feed_forward_length"
    return {
        "intermediate_size": size,
        "shared_intermediate_size": metadata.whole(shared, least=1) if shared in metadata else size,
        **_attending(metadata, name, sizes["num_hidden_layers"], "linear_attention"),
        "position_embedding_type": "rope" if metadata.truth(f"{name}.rope.scaling.finetuned", True) else None,
        "mamba_n_groups": groups,
        "mamba_n_heads": heads,
        "mamba_d_state": state,
        "mamba_d_head": inner // heads,
        "mamba_d_conv": taps,
        "mamba_expand": inner // sizes["hidden_size"],
    }


def _attending(metadata: GgufMetadata, name: str, layers: int, others: str) -> dict[str, Any]:
    """Key heads, and the kind of each layer: `others` if it has no key heads."""
    key = f"{name}.attention.head_count_kv"
    kv_heads = metadata.per_layer(key, layers, least=0)
    if len(set(kv_heads) - {0}) != 1:
        raise metadata.refused(key, "one number for all layers that attend, 0 for others")
    kinds = ["full_attention" if each else others for each in kv_heads]
    return {"num_key_value_heads": max(kv_heads), "layer_types": kinds}


def _convolved(metadata: GgufMetadata, name: str, layers: int) -> dict[str, Any]:
    return {
        "intermediate_size": metadata.same_for_all(f"{name}.feed_forward_length", layers),
        "block_auto_adjust_ff_dim": False,
        **_attending(metadata, name, layers, "conv"),
        "conv_L_cache": metadata.whole(f"{name}.shortconv.l_cache", least=1),
    }


def _check_tokens(metadata: GgufMetadata, vocab_size: int) -> None:
    key = "tokenizer.ggml.tokens"
    if key in metadata and len(metadata.texts(key)) > vocab_size:
        raise metadata.refused(key, f"at most the {vocab_size} tokens of the embeddings")


def _window_field(family: str) -> str:
    return f"{family}.attention.sliding_window"


def _window(metadata: GgufMetadata, family: str, layers: int, *, rotated_windows: bool) -> dict[str, Any]:
    """Members of config.json. Without a pattern in the file, transformers' default is the same as llama.cpp's."""
    window, key = metadata.whole(_window_field(family), 0), f"{family}.attention.sliding_window_pattern"
    if not window:
        return {"sliding_window": None, "layer_types": ["full_attention"] * layers} if rotated_windows else {}
    members: dict[str, Any] = {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0}
    if key in metadata:
        pattern = metadata[key]
        every = metadata.whole(key, least=1) if isinstance(pattern, int) else 0
        sliding = [(n + 1) % every > 0 for n in range(layers)] if every else metadata.numbers(key).tolist()
        if len(sliding) < layers:
            raise metadata.refused(key, f"a number, or true or false for each of {layers} layers")
        members["layer_types"] = ["sliding_attention" if each else "full_attention" for each in sliding[:layers]]
    return members


def _scaled(metadata: GgufMetadata, family: Family, sizes: dict[str, Any]) -> dict[str, Any]:
    """Soft caps and scales. As in llama.cpp, query_pre_attn_scalar follows from the number of layers."""
    name, members = family.gguf_name, {}
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        if f"{name}.{cap}" in metadata:
            members[cap] = metadata.real(f"{name}.{cap}", above=0.0)
    if "query_pre_attn_scalar" in family.scaled:
        wide = sizes["num_hidden_layers"] == family.gguf_wide_queries
        whole = sizes["hidden_size"] // sizes["num_attention_heads"]
        members["query_pre_attn_scalar"] = whole if wide else sizes["head_dim"]
    if family.multipliers and not family.mamba and not metadata.truth(f"{name}.rope.scaling.finetuned", True):
        raise UnsupportedArchitecture(f"{metadata.path}: {name}.rope.scaling.finetuned is false; supported: true")
    if family.multipliers:  # 0 is for the default
        members["attention_multiplier"] = metadata.real(f"{name}.attention.scale", 0.0) or inverse_root(
            sizes["head_dim"]
        )
        for member in ("embedding_multiplier", "residual_multiplier", "logits_scaling"):
            scale = member.replace("multiplier", "scale").replace("logits_scaling", "logit_scale")
            members[member] = metadata.real(f"{name}.{scale}", 0.0) or 1.0
    return members


def _experts(metadata: GgufMetadata, family: Family, layers: int) -> dict[str, Any]:
    """Members of config.json. As in llama.cpp, shares of the chosen experts sum to one by default."""
    name = family.gguf_name
    if family.experts is None or (family.dense_mlp and not metadata.whole(f"{name}.expert_count", 0)):
        return {"num_local_experts": 0} if family.dense_mlp else {}
    if family.parallel:
        return _parallel_experts(metadata, name)
    inner = _inner(metadata, family, layers)
    size = metadata.whole(f"{name}.expert_feed_forward_length", inner, least=1)
    count = metadata.whole(f"{name}.expert_count", least=1)
    members: dict[str, Any] = {
        ("num_experts" if family.scored_router or family.shared_gate else "num_local_experts"): count,
        "num_experts_per_tok": metadata.whole(f"{name}.expert_used_count", least=1),
        "norm_topk_prob": metadata.truth(f"{name}.expert_weights_norm", True),
        expert_size_field(CONFIG_MAPPING[family.name]): size,
    }
    if family.scored_router:
        return members | _scored(metadata, name)
    if family.shared_gate:
        shared = metadata.whole(f"{name}.expert_shared_feed_forward_length", inner, least=1)
        return members | {"shared_expert_intermediate_size": shared}
    return members | (_llama4(metadata, count, inner) if family.shared_expert else {})


def _scored(metadata: GgufMetadata, name: str) -> dict[str, Any]:
    """LFM2 with experts. llama.cpp's files always have their bias."""
    if metadata.whole(f"{name}.expert_gating_func") != _SIGMOID:
        raise metadata.refused(f"{name}.expert_gating_func", f"{_SIGMOID}, sigmoid")
    return {
        "num_dense_layers": metadata.whole(f"{name}.leading_dense_block_count", 0),
        "use_expert_bias": True,
        "routed_scaling_factor": metadata.real(f"{name}.expert_weights_scale", 0.0) or 1.0,
    }


def _parallel_experts(metadata: GgufMetadata, name: str) -> dict[str, Any]:
    """Experts of Gemma 4, which not every size of it has."""
    if not metadata.whole(f"{name}.expert_count", 0):
        return {"enable_moe_block": False}
    return {
        "enable_moe_block": True,
        "num_experts": metadata.whole(f"{name}.expert_count"),
        "top_k_experts": metadata.whole(f"{name}.expert_used_count", least=1),
        "moe_intermediate_size": metadata.whole(f"{name}.expert_feed_forward_length", least=1),
    }


def _llama4(metadata: GgufMetadata, experts: int, inner: int) -> dict[str, Any]:
    """Members of Llama 4. As in llama.cpp, Maverick is recognised by its number of experts."""
    return {
        "intermediate_size_mlp": inner,
        "interleave_moe_layer_step": metadata.whole("llama4.interleave_moe_layer_step", 1, least=1),
        "use_qk_norm": experts != _MAVERICK_EXPERTS,
    }


def _transformers_config(path: Path, family: Family, members: dict[str, Any]) -> PreTrainedConfig:
    try:
        made: PreTrainedConfig = AutoConfig.for_model(family.name, **members)
        return made
    except Exception as error:  # transformers raises many kinds here, each of them about these members
        raise ConfigInvalid(f"{path}: the metadata does not make a configuration: {error}") from error


def _has(file: GgufFile, module: str) -> bool:
    return f"model.layers.0.{module}" in file.names()


def _ends(metadata: GgufMetadata, vocab_size: int) -> tuple[int, ...]:
    """Ids that end a sequence: of fields for them and, as in llama.cpp, special tokens with well-known names."""
    ids = {metadata.whole(f"tokenizer.ggml.{end}_token_id", vocab_size) for end in _ENDS}
    if "tokenizer.ggml.tokens" in metadata and "tokenizer.ggml.token_type" in metadata:
        tokens, kinds = metadata.texts("tokenizer.ggml.tokens"), metadata.numbers("tokenizer.ggml.token_type")
        special = np.flatnonzero(np.isin(kinds[: len(tokens)], (_CONTROL, _USER_DEFINED)))
        named = {tokens[index]: index for index in special.tolist()}
        ids = (ids | ends_by_name(named)) - ends_of_messages(named)
    return tuple(sorted(i for i in ids if i < vocab_size))


def _usual_ends(metadata: GgufMetadata, vocab_size: int) -> set[int]:
    """The usual end id of a SentencePiece model whose file has no EOS of the vocabulary, as of its tokenizer."""
    key = "tokenizer.ggml.tokens"
    if key not in metadata or metadata.text("tokenizer.ggml.model", "") != "llama":
        return set()
    tokens = metadata.texts(key)
    usual = usual_piece("eos", tokens)
    named = metadata.whole("tokenizer.ggml.eos_token_id", vocab_size) < len(tokens)
    return set() if named or usual is None or usual >= len(tokens) else {usual}
