"""A model's configuration as the canonical pass needs it, read from a transformers directory or a GGUF file."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, GenerationConfig, PreTrainedConfig

from services.generation.target.blocks import BLOCK, blocks_for
from services.generation.target.config import config_document as members
from services.generation.target.config.end_tokens import ends_of_tokenizer
from services.generation.target.config.gguf_config import read_gguf_config
from services.generation.target.config.rope import Rotation, inverse_root
from services.generation.target.errors import ConfigInvalid, TargetError, about
from services.generation.target.family import Clamp, Experts, Family, HeadSizes, StateRule, Temperature
from services.generation.target.files.gguf_file import GgufFile, is_gguf
from services.generation.target.kernels.storages import padded
from services.generation.target.sizes import LEAST_CONTEXT

_log = logging.getLogger(__name__)

DEFAULT_MOST = 8192  # tokens: a context of 131,072 needs 16 GiB of cache for one sequence of an 8B Llama
DEFAULT_BYTES = 1 << 30
_OLD_LONGROPE = "su"  # LongRoPE's type in the first Phi-3 files, which transformers rejects as incomplete
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}  # of a cached key or value
_KEYS, _VALUES = 32, 16  # multiples to which the cache pads int8 keys, and all values (kernels/attention)
_SCALE = 4  # bytes, of an int8 key or value
_FEATURE_SHARE = 8  # one byte in this many is for features kept with cached prefixes
_MOST_CONTEXTS = 64  # contexts in a cache of default size
_PROBED = 9  # blocks used by the probe at start
_WIDEST_IN_BYTES = 128
"""Elements of a head, which share a scale: Gemma 3 270M, with 256, loses 0.008 nats a token to int8, SmolLM2-135M, with
64, loses 0.001 (`benchmarks/results/README.md`).
"""


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """Shapes and constants of one target. Lengths in tokens, sizes in elements."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_epsilon: float
    context_length: int
    tied_embeddings: bool
    attention_bias: bool  # on q, k and v
    output_bias: bool  # on o
    mlp_bias: bool
    head_norms: bool  # Qwen3 normalises each query and key head
    windows: tuple[int, ...]  # per layer, keys visible to a query, itself included; 0 is all of them
    rotations: tuple[Rotation, ...]  # per layer
    query_scale: float
    eos_token_ids: tuple[int, ...]
    joined_end_ids: tuple[int, ...] = ()  # end ids of the tokenizer that the configuration does not name
    fused: bool = False  # q, k and v are one module, gate and up another
    activation: str = "silu"  # or gelu
    sandwich_norms: bool = False  # norms of the outputs of attention and MLP
    norm_offset: float = 0.0  # added to the weights of norms
    embedding_scale: float = 1.0
    attention_cap: float = 0.0  # soft cap of scores, or 0
    logit_cap: float = 0.0  # soft cap of logits, or 0
    experts: Experts | None = None
    sinks: bool = False  # of attention, one for each query head
    clamp: Clamp | None = None  # of gate and up, in place of the activation
    mlp: str = "mlp"  # the module with gate, up and down
    unit_head_norms: bool = False  # norms without weights of queries and keys in rotated layers
    chunks: tuple[int, ...] = ()  # per layer, positions of an attention chunk, or 0
    temperature: Temperature | None = None  # in layers without rotation; in all layers of Ministral 3
    head_sizes: tuple[HeadSizes, ...] = ()  # per layer, if they differ
    mlp_sizes: tuple[int, ...] = ()  # per layer, if they differ
    value_norms: bool = False  # norms of values, without weights
    layer_inputs: int = 0  # size of the embeddings that each layer reads for every token, or 0
    layer_scalars: bool = False  # the stream is multiplied by a number after each layer
    residual_scale: float = 1.0  # factor of the outputs that layers add to the stream
    logit_scale: float = 1.0  # factor of the last norm's weights, and so of logits
    whole_norms: bool = False  # a norm is over all queries of a row, another over all keys
    norms_before: bool = True  # attention and MLP read the normalised stream
    rule: StateRule | None = None  # layers that fold a state in place of attention
    gated: bool = False  # attention's output is multiplied by gates from q_proj
    convolutions: tuple[int, ...] = ()  # per layer, taps of a gated short convolution in place of attention, or 0

    def heads_of(self, layer: int) -> HeadSizes:
        return self.head_sizes[layer] if self.head_sizes else HeadSizes(self.kv_heads, self.head_dim)

    def cached_bytes(self, layer: int, dtype: str) -> int:
        """Bytes of a token's cache in a layer: its keys and values, or the inputs of a convolution or a state."""
        item = _ITEM_BYTES[dtype]
        if self.rule and self.rule.layers[layer]:
            return max(item, 2) * padded(self.rule.cached, _VALUES)
        if self.convolutions and self.convolutions[layer]:
            return max(item, 2) * padded(self.hidden_size, _VALUES)
        own = self.heads_of(layer)
        key, value = own.head_dim, padded(own.head_dim, _VALUES)
        if dtype == "int8":
            key, value = padded(key, _KEYS) + _SCALE, value + _SCALE
        return 0 if own.source is not None else own.kv_heads * item * (key + value)


def read_config(path: Path) -> TargetConfig:
    """Read and check the configuration of a model.

    Args:
        path: a GGUF file, or a transformers directory with config.json and, optionally, generation_config.json
            (end-of-sequence ids).

    Raises:
        ModelNotFound: there is no such directory or file, or no config.json in the directory.
        UnsupportedArchitecture: the architecture or its RoPE variant is not one of those listed in the message.
        ConfigInvalid: a field is missing or out of range; the message names it.
        WeightsInvalid: the GGUF file is damaged.
    """
    return read_gguf(GgufFile.open(path)) if is_gguf(path) else _read_directory(path)


def _read_directory(directory: Path) -> TargetConfig:
    document, place = members.read_document(directory), directory / "config.json"
    try:
        family, config = members.family_of(document), _read_transformers(directory)
        if config.model_type != family.name:  # by which transformers chooses the model
            raise ConfigInvalid(
                f"model_type: {config.model_type!r}; expected {family.name!r} with architectures "
                f"{document.get('architectures')!r:.80}: correct one of them, or download config.json again"
            )
        read = _target_config(family, config, str(place))
    except TargetError as error:
        raise type(error)(about(place, error)) from error
    biased = bool(getattr(config, "attention_bias", False))
    ends = _eos_token_ids(config, directory)
    joined = tuple(sorted(i for i in ends_of_tokenizer(directory) - {*ends} if 0 <= i < config.vocab_size))
    return replace(
        read,
        norm_offset=float(family.norms_around_one),
        attention_bias=family.qkv_bias or biased,
        output_bias=not family.qkv_bias and biased,
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        eos_token_ids=tuple(sorted((*ends, *joined))),
        joined_end_ids=joined,
    )


def config_within(family: Family, document: dict[str, Any], place: str) -> TargetConfig:
    """The configuration of a model of a family that is a member of another document, without biases and end ids.
    `place` names it in messages. Raises as `read_config` does.
    """
    members.family_of(document | {"architectures": [family.architecture]})
    try:
        config: PreTrainedConfig = CONFIG_MAPPING[family.name].from_dict(_modernised(document))
    except Exception as error:  # transformers raises many kinds here, each of them about this document
        raise ConfigInvalid(f"{place}: {error}") from error
    return _target_config(family, config, place)


def read_gguf(file: GgufFile, family: Family | None = None) -> TargetConfig:
    """The configuration of an open GGUF file, of an assistant if it is named as `family`. Raises as `read_config`."""
    found = read_gguf_config(file, family)
    read = _target_config(found.family, found.config, str(file.path), found.rope_factors)
    return replace(
        read,
        rule=replace(read.rule, converted=True) if read.rule else None,
        attention_bias=found.attention_bias,
        output_bias=found.output_bias,
        mlp_bias=found.mlp_bias,
        eos_token_ids=found.eos_token_ids,
        joined_end_ids=found.joined_end_ids,
    )


def rope_parameters(path: Path) -> dict[str, Any]:
    """The `rope_parameters` that a head trained for this base inherits. For a GGUF file they are in config.json's form.

    A draft head rotates whole heads; from a partial rotation or LongRoPE it inherits the base of frequencies alone.
    Raises as `read_config` does.
    """
    config = read_gguf_config(GgufFile.open(path)).config if is_gguf(path) else _read_transformers(path)
    found = dict(config.rope_parameters)
    found = dict(found.get(members.BY_KIND, found))
    if found.pop("partial_rotary_factor", None) in (None, 1.0) and found.get("rope_type") != "longrope":
        return found
    return {"rope_type": "default", "rope_theta": found["rope_theta"]}


def _read_transformers(directory: Path) -> PreTrainedConfig:
    document = members.read_document(directory)
    kind = document.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ConfigInvalid(f"{directory}/config.json: model_type is {kind!r}; expected a name that transformers knows")
    try:
        config: PreTrainedConfig = CONFIG_MAPPING[kind].from_dict(_modernised(document))
        return _text_part(config, document)
    except Exception as error:  # transformers raises many kinds here, each of them about this file
        raise ConfigInvalid(f"{directory}/config.json: {error}") from error


def _modernised(document: dict[str, Any]) -> dict[str, Any]:
    """A configuration in the installed transformers' form. dtype is left out: weight files have their own."""
    document = {name: value for name, value in document.items() if name not in ("dtype", "torch_dtype")}
    scaling, tuning = document.get("rope_scaling"), document.get("attn_temperature_tuning")
    if isinstance(scaling, dict) and scaling.get("type") == _OLD_LONGROPE:
        document = document | {"rope_scaling": scaling | {"type": "longrope"}}
    if isinstance(limits := document.get("time_step_limit"), list):
        limits = [math.inf if limit == {"__float__": "Infinity"} else limit for limit in limits]
        document = document | {"time_step_limit": limits}
    if isinstance(tuning, int):  # Llama 4 has 4, for true
        document = document | {"attn_temperature_tuning": bool(tuning)}
    if isinstance(document.get("text_config"), dict):
        document = document | {"text_config": _modernised(document["text_config"])}
    return document


def _text_part(config: PreTrainedConfig, document: dict[str, Any]) -> PreTrainedConfig:
    """The text part of a multimodal configuration, with the end ids and tied embeddings of the whole."""
    text = config.get_text_config()
    if text is not config and ("tie_word_embeddings" in document or not hasattr(text, "tie_word_embeddings")):
        text.tie_word_embeddings = config.tie_word_embeddings
    if text is not config and getattr(config, "eos_token_id", None) is not None:
        text.eos_token_id = config.eos_token_id
    return text


def _target_config(
    family: Family, config: PreTrainedConfig, place: str, rope_factors: Sequence[float] = ()
) -> TargetConfig:
    """A configuration without biases and end ids: each format has them elsewhere."""
    _check_sizes(config, place)
    sized = members.by_layer(config, place) if family.sizes_by_layer else {}  # checked before heads are rotated
    read = TargetConfig(
        architecture=family.name,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=members.inner_size(config, place),
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=members.first_layer(config).num_key_value_heads,
        head_dim=members.head_dim(config),
        norm_epsilon=_epsilon(config, "norm_eps" if family.convolved else "rms_norm_eps", place),
        context_length=config.max_position_embeddings,
        tied_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        head_norms=family.head_norms,
        whole_norms=family.whole_norms,
        norms_before=family.norms_before,
        windows=members.windows(config, family, place),
        rotations=members.rotations(config, family, rope_factors),
        query_scale=family.query_scale
        or inverse_root(_scaling(config, family, "query_pre_attn_scalar", place, members.head_dim(config))),
        eos_token_ids=(),
        fused=family.fused,
        activation=members.ACTIVATIONS[family.activation],
        sandwich_norms=family.sandwich_norms,
        embedding_scale=math.sqrt(config.hidden_size) if family.scaled else 1.0,
        attention_cap=_scaling(config, family, "attn_logit_softcapping", place, 0.0),
        logit_cap=_scaling(config, family, "final_logit_softcapping", place, 0.0),
        experts=members.experts(config, family, place),
        sinks=family.sinks,
        clamp=members.clamp(config, place) if family.clamped else None,
        mlp=family.mlp,
        unit_head_norms=family.unit_head_norms and config.use_qk_norm,
        chunks=members.chunks(config, place) if family.chunks else (),
        temperature=members.temperature(config, family, place),
        convolutions=members.convolutions(config, place) if family.convolved else (),
        rule=members.state_rule(config, family, place),
        gated=family.gated,
    )
    if family.multipliers:
        return replace(read, **members.multipliers(config, place))
    return replace(read, **sized)


def _check_sizes(config: PreTrainedConfig, place: str) -> None:
    names = ("vocab_size", "hidden_size", members.inner_field(config), "num_hidden_layers", "num_attention_heads")
    for name in (*names, "max_position_embeddings"):
        members.check_size(getattr(config, name, None), name, place)
    kv_heads = getattr(members.first_layer(config), "num_key_value_heads", None)
    members.check_size(kv_heads, "num_key_value_heads", place)
    if config.num_attention_heads % kv_heads:
        raise ConfigInvalid(
            f"{place}: num_attention_heads {config.num_attention_heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    members.check_size(members.head_dim(config), "head_dim", place)
    if members.head_dim(config) % 2:
        raise ConfigInvalid(f"{place}: head_dim {members.head_dim(config)} is odd; RoPE needs an even one")


def _epsilon(config: PreTrainedConfig, name: str, place: str) -> float:
    if (epsilon := members.positive(config, name, place)) >= 1:
        raise ConfigInvalid(f"{place}: {name} is {epsilon!r}; expected a number between 0 and 1")
    return epsilon


def _scaling(config: PreTrainedConfig, family: Family, name: str, place: str, default: float) -> float:
    """A number above 0, or `default` if it is missing or ignored in this family."""
    given = name in family.scaled and getattr(config, name, None) is not None
    return members.positive(config, name, place) if given else default


def _eos_token_ids(config: PreTrainedConfig, directory: Path) -> tuple[int, ...]:
    """End ids of generation_config.json, or else of config.json; ids outside of the vocabulary are left out, with a
    warning.
    """
    found, place, path = getattr(config, "eos_token_id", None), "config.json", directory / "generation_config.json"
    if path.exists():
        try:
            generation = GenerationConfig.from_pretrained(directory, local_files_only=True)
        except Exception as error:  # of many kinds, each about this file
            raise ConfigInvalid(f"{path}: {error}") from error
        if generation.eos_token_id is not None:
            found, place = generation.eos_token_id, path.name
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(i) is int for i in ids):  # true is no id
        problem = f"eos_token_id is {found!r:.80}; expected an id or a list of ids"
        raise ConfigInvalid(f"{directory / place}: {problem}")
    if beyond := [i for i in ids if not 0 <= i < config.vocab_size]:
        _log.warning(
            "ignoring ids outside of the vocabulary of %d: eos_token_id %.80s in %s",
            config.vocab_size, beyond, directory / place,
        )  # fmt: skip
    return tuple(sorted({*ids} - {*beyond}))


def bounded(config: TargetConfig, asked: int | None) -> TargetConfig:
    """The config with the context length to serve, tokens: `asked`, or the model's own up to DEFAULT_MOST and up to
    LongRoPE's short length: a longer context changes the rotation of short texts too.

    Raises ConfigInvalid if it is less than LEAST_CONTEXT, or longer than the model's own.
    """
    own = config.context_length
    most = min([DEFAULT_MOST, own, *(rotation.trained for rotation in config.rotations if rotation.long)])
    served = most if asked is None else asked
    if not LEAST_CONTEXT <= served <= own:
        raise ConfigInvalid(
            f"--context-length: {served} tokens; expected at least {LEAST_CONTEXT} and at most the model's own, {own}"
        )
    return replace(config, context_length=served)


def explained(served: int, own: int, asked: int | None) -> str:
    """A description of the served context and its reason, for the log."""
    if asked is not None:
        return f"context length {served} of the model's {own}, set by --context-length"
    if served < own:
        return f"context length {served} of the model's {own}; raise it with --context-length"
    return f"context length {served}, the model's own"


def usual_cache(config: TargetConfig, arithmetic: str) -> str:
    """The default type of keys and values: the arithmetic's own, or bfloat16 if heads are too wide for int8."""
    widest = max(config.heads_of(layer).head_dim for layer in range(config.layers))
    return "bfloat16" if arithmetic == "int8" and widest > _WIDEST_IN_BYTES else arithmetic


def cache_blocks(config: TargetConfig, dtype: str, *, tokens: int | None, size: int | None) -> int:
    """Cache blocks for `tokens` tokens, or for `size` bytes minus `feature_bytes(size)`; with neither, for
    DEFAULT_BYTES, at least one whole context. Keys and values are of `dtype`.

    Raises ConfigInvalid if `size` cannot hold one sequence of the whole context.
    """
    block, context = block_bytes(config, dtype), max(blocks_for(config.context_length), _PROBED)
    if tokens is not None:
        return blocks_for(tokens)
    if size is None:
        return max(context, min(_for_blocks(DEFAULT_BYTES) // block, _MOST_CONTEXTS * context))
    if _for_blocks(size) < context * block:
        needed = context * block + (context * block - 1) // (_FEATURE_SHARE - 1)
        raise ConfigInvalid(
            f"--cache-bytes: {size} bytes cannot hold one sequence of {config.context_length} tokens; expected at "
            f"least {needed} ({-(-needed >> 20)} MiB), or a smaller --context-length"
        )
    return _for_blocks(size) // block


def block_bytes(config: TargetConfig, dtype: str) -> int:
    """Bytes of the cache for BLOCK tokens, in all layers."""
    return BLOCK * sum(config.cached_bytes(layer, dtype) for layer in range(config.layers))


def feature_bytes(size: int | None) -> int:
    """Bytes for features of cached prefixes in a cache of `size` bytes."""
    return (DEFAULT_BYTES if size is None else size) // _FEATURE_SHARE


def _for_blocks(size: int) -> int:
    return size - feature_bytes(size)
