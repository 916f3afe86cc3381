"""An EAGLE-3 head and its configuration, in kolm's layout and in two published layouts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from transformers import LlamaConfig, Qwen3Config

from services.generation.drafting.heads import (
    HeadConfigInvalid,
    Layout,
    check_choices,
    check_sizes,
    layer_numbers,
    published_sizes,
    rotation_of_head,
    typed_or,
)
from services.generation.target.arrays import Float32, Int64
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.config_document import ACTIVATIONS
from services.generation.target.config.layer_specs import LayerSpec, decoder_layer
from services.generation.target.families import GPT_OSS
from services.generation.target.files.safetensors import Part

_log = logging.getLogger(__name__)

FEATURE_NORM = "midlayer.hidden_norm.weight"
EMBEDDING = "embed_tokens.weight"
LAYOUT = "kolm.eagle3.v1"
KOLM_LAYOUT = Layout(
    {"layout": LAYOUT, "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"},
    {
        "output_bias": ("output_bias", bool),
        "mlp_bias": ("mlp_bias", bool),
        "head_norms": ("head_norms", bool),
        "norm_before_residual": ("norm_before_residual", bool),
        "norm_before_fc": ("norm_before_fc", bool),
        "fc_norm": ("fc_norm", bool),
        "norm_output": ("norm_output", bool),
        "hidden_act": ("hidden_act", str),
    },
)
ARCHITECTURES = ("LlamaForCausalLMEagle3", "LlamaForCausalLM", "LlamaEagle3DraftModel")
_REQUIRED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
_LAYER_CONFIGS: dict[str, type[LlamaConfig] | type[Qwen3Config]] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
_IDS = "eagle_aux_hidden_state_layer_ids"
_SUPPORTED: dict[str, tuple[object, ...]] = {
    "use_aux_hidden_state": (True,),  # the streams of several layers, not only the last layer's
    "use_input_layernorm_in_first_layer": (True,),
    "use_last_layernorm": (True,),
    "use_mtp_layernorm": (False,),
    "next_layer_regular": (True,),
    "parallel_draft_step": (1,),
    "parallel_draft_heads_num_layers": (0, 1),
}
"""Choices of published heads, with the values that the pass implements. Null is unset."""
_CHOICES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
"""Choices that are read besides the sizes. Inside of eagle_config they must have the same values."""
Origin = Literal["kolm", "safeailab", "speculators"]


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Shapes and choices of one head (EAGLE-3, Li et al. 2025). Lengths in tokens, sizes in elements.

    Input of an entry: the target's concatenated residual streams after `feature_layers` decoder layers, and the next
    token. `fc` projects the streams to `hidden_size`; the first decoder layer reads that feature concatenated with the
    token's embedding, later layers are ordinary.
    """

    layers: int
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_epsilon: float
    vocab_size: int  # the target's
    draft_vocab_size: int
    feature_layers: tuple[int, ...]  # in the order of `fc`'s input; 0 are the embeddings
    rope: dict[str, Any]  # transformers' rope_parameters: rope_type, rope_theta, …
    trained_length: int  # positions in training; beyond them drafts get worse, but nothing breaks
    attention_bias: bool  # on q, k and v
    output_bias: bool  # on o
    mlp_bias: bool
    head_norms: bool  # query and key heads are normalised, as in Qwen3
    own_embeddings: bool  # embed_tokens comes with the head; otherwise the target's are read
    norm_before_residual: bool  # the first residual is the normed feature instead of the feature
    norm_before_fc: bool  # one norm over all concatenated streams (`input_norm`)
    fc_norm: bool  # one norm for each stream
    norm_output: bool  # the next draft step gets the normed output as its feature
    hidden_act: str = "silu"  # transformers' name

    def check(self) -> None:
        """Raises HeadConfigInvalid, naming the field, for sizes that no head can have."""
        check_sizes(self)
        rotation_of_head(self)
        if self.hidden_act not in ACTIVATIONS:
            raise HeadConfigInvalid(f"hidden_act is {self.hidden_act!r:.80}; supported: {', '.join(ACTIVATIONS)}")


@dataclass(frozen=True, slots=True)
class Head:
    """A head in memory, checked against its config and its base; pure data, which `HeadPass` computes with."""

    kind: ClassVar[str] = "eagle3"

    origin: str
    config: HeadConfig
    tensors: dict[str, Float32]  # by the names of `head_shapes`
    target_ids: Int64  # [draft_vocab_size] the target's token of each draft token
    other_layers: tuple[tuple[int, ...], ...] = ()  # other readings of `feature_layers` that the layout allows


def head_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every float tensor of a head in kolm's layout; weights are [out, in]."""
    hidden = config.hidden_size
    features = len(config.feature_layers) * config.target_hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, features),
        "norm.weight": (hidden,),
        "lm_head.weight": (config.draft_vocab_size, hidden),
    }
    if config.own_embeddings:
        shapes[EMBEDDING] = (config.vocab_size, hidden)
    if config.norm_before_fc:
        shapes["input_norm.weight"] = (features,)
    if config.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (config.target_hidden_size,) for i in range(len(config.feature_layers))}
    for layer in range(config.layers):
        shapes |= layer_spec(config, layer).shapes(hidden)
    return {**shapes, FEATURE_NORM: (hidden,)}


def layer_spec(config: HeadConfig, layer: int) -> LayerSpec:
    """A decoder layer for the target's kernels; the first layer reads embedding and feature concatenated.

    kolm's layout names the first layer as SafeAILab does, later layers by number.
    """
    prefix, reads = ("midlayer.", 2) if layer == 0 else (f"layers.{layer}.", 1)
    spec = decoder_layer(config, prefix, inputs=reads * config.hidden_size)
    return replace(spec, activation=ACTIVATIONS[config.hidden_act])


def parse_config(document: Mapping[str, Any]) -> HeadConfig:
    """The configuration. Raises HeadConfigInvalid, naming a missing, unknown, mistyped or out-of-range member."""
    config = HeadConfig(**KOLM_LAYOUT.values(document))
    config.check()
    return config


def write_head(directory: Path, config: HeadConfig, tensors: Mapping[str, Part]) -> None:
    """Write a head in kolm's layout, always with a `d2t`: see `Layout.write`."""
    config.check()
    KOLM_LAYOUT.write(directory, config, head_shapes(config) | {"d2t": (config.draft_vocab_size,)}, tensors)


def default_layers(base: TargetConfig) -> tuple[int, ...]:
    """Low, middle and high layer of EAGLE-3's own training code: hidden_states[2], [n // 2] and [n - 3]."""
    return (2, base.layers // 2, base.layers - 3)


def read_safeailab(document: dict[str, Any], names: Set[str], base: TargetConfig) -> HeadConfig:
    """The layout of SafeAILab/EAGLE and SpecForge; `names` are the tensors' names.

    Explicit layer ids name layers whose *output* is read: id i is the stream after i + 1 layers; ids of heads for
    gpt-oss (nvidia) name the stream itself.
    """
    architecture = document.get("architectures") or [None]
    if not isinstance(architecture, list) or architecture[0] not in ARCHITECTURES:
        raise HeadConfigInvalid(f"config.json: architectures is {architecture}; expected one of {ARCHITECTURES}")
    missing = [member for member in _REQUIRED if member not in document]
    if missing:
        raise HeadConfigInvalid(f"config.json: missing {missing}")
    nested = typed_or(document, "eagle_config", {}, dict)
    where = nested if nested.get(_IDS) else document
    after = 0 if base.architecture == GPT_OSS.name else 1
    layers = tuple(i + after for i in layer_numbers(where, _IDS)) if where.get(_IDS) else default_layers(base)
    config = _config(document, document, LlamaConfig, names, layers, norm_before_residual=False)
    read = {choice: (getattr(config, choice),) for choice in _CHOICES}
    check_choices(nested, _SUPPORTED | read, within="eagle_config", known=(_IDS,))
    if config.norm_output:  # the files do not record how such a head was trained
        _log.warning(
            "head: it has norm_output: SpecForge before 15 September 2026 trained such heads without, and they draft "
            "worse from their second step on; if acceptance is low, train it again"
        )
    return config


def read_speculators(document: dict[str, Any], names: Set[str], base: TargetConfig) -> HeadConfig:
    """The layout of speculators; `names` are the tensors' names in kolm's layout.

    Layer ids are used literally: id i is the stream after i layers. The nested config contains only differences from
    transformers' defaults. `norm_before_residual` is true if it is missing.
    """
    nested = document.get("transformer_layer_config")
    if not isinstance(nested, dict):
        raise HeadConfigInvalid(f"config.json: transformer_layer_config is {nested!r}; expected an object")
    kind = nested.get("model_type", "llama")
    if kind not in _LAYER_CONFIGS:
        raise HeadConfigInvalid(f"config.json: model_type is {kind!r}; expected one of {sorted(_LAYER_CONFIGS)}")
    layers = layer_numbers(document, _IDS) if document.get(_IDS) else default_layers(base)
    nested = {"num_hidden_layers": 1, **nested}
    return _config(document, nested, _LAYER_CONFIGS[kind], names, layers, norm_before_residual=True)


def _config(
    document: dict[str, Any],
    layer: dict[str, Any],
    kind: type[LlamaConfig] | type[Qwen3Config],
    names: Set[str],
    feature_layers: tuple[int, ...],
    *,
    norm_before_residual: bool,
) -> HeadConfig:
    """The configuration of a published head. Tensors determine biases and embeddings: some configs are copies of a
    base's, with tensors that the head lacks. A norm before `fc` always has its tensor, but not always its member.
    """
    check_choices(document, _SUPPORTED)
    _, sizes = published_sizes(kind, layer)
    config = HeadConfig(
        **sizes,
        target_hidden_size=typed_or(document, "target_hidden_size", sizes["hidden_size"], int),
        draft_vocab_size=typed_or(document, "draft_vocab_size", sizes["vocab_size"], int),
        feature_layers=feature_layers,
        attention_bias="midlayer.self_attn.q_proj.bias" in names,
        output_bias="midlayer.self_attn.o_proj.bias" in names,
        mlp_bias="midlayer.mlp.down_proj.bias" in names,
        head_norms=kind is Qwen3Config,
        own_embeddings=EMBEDDING in names,
        norm_before_residual=typed_or(document, "norm_before_residual", norm_before_residual, bool),
        norm_before_fc=typed_or(document, "norm_before_fc", "input_norm.weight" in names, bool),
        fc_norm=typed_or(document, "fc_norm", False, bool),
        norm_output=typed_or(document, "norm_output", False, bool),
        hidden_act=typed_or(layer, "hidden_act", "silu", str),
    )
    config.check()
    return config
