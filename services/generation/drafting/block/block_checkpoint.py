"""A block head and its configuration, in kolm's layout and in published layouts.

The layout of speculators (`dflash`, `dspark`) nests the layers' configuration; DeepSpec and z-lab write one flat Qwen3
configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from transformers import Qwen3Config

from services.generation.drafting.heads import (
    Described,
    HeadConfigInvalid,
    Layout,
    Stored,
    check_choices,
    check_sizes,
    layer_numbers,
    published_sizes,
    read_document,
    read_weights,
    rotation_of_head,
    typed,
    typed_or,
)
from services.generation.target.arrays import Float32, Int64
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.layer_specs import LayerSpec, decoder_layer
from services.generation.target.files.safetensors import Part

MOST_BLOCK = 64  # positions of a block; published heads have 7 to 16
FC, CONTEXT_NORM, NORM = "fc.weight", "hidden_norm.weight", "norm.weight"
EMBEDDING, OUTPUT = "embed_tokens.weight", "lm_head.weight"
MARKOV_IN, MARKOV_OUT = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
CONFIDENCE, CONFIDENCE_BIAS = "confidence_head.proj.weight", "confidence_head.proj.bias"
ATTENTION_CONVOLUTION, MLP_CONVOLUTION = "attention_conv.", "mlp_conv."
BASE_KERNEL, KERNEL_PROJECTION = "base_kernel", "kernel_projection.weight"
BEFORE, AFTER = (f"candidate_selector.{of}_codebook" for of in ("predecessor", "successor"))
STATE_PROJECTION = "candidate_selector.hidden_projection.weight"
LAYOUT = "kolm.block.v1"
SPECULATORS = ("dflash", "dspark", "dflash2")
ARCHITECTURES = ("DFlashDraftModel", "Qwen3DFlashModel", "Qwen3DSparkModel", "DFlash2DraftModel")
KNOWN_BY = (
    f"layout {LAYOUT}, speculators_model_type {' or '.join(SPECULATORS)}, or architectures {', '.join(ARCHITECTURES)}"
)
_LAYOUT = Layout(
    {"layout": LAYOUT, "architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "hidden_act": "silu"},
    {
        "block_size": ("block_size", int),
        "mask_token_id": ("mask_token", int),
        "sample_from_anchor": ("from_first", bool),
        "windows": ("windows", list),
        "markov_rank": ("markov_rank", int),
        "confidence_head": ("confidence", bool),
        "confidence_head_with_markov": ("confidence_reads_token", bool),
        "own_output": ("own_output", bool),
    },
)
_SUPPORTED: dict[str, tuple[object, ...]] = {
    "causal": (False,),
    "is_causal": (False,),
    "attention_mode": ("gqa",),
    "projector_type": ("dflash",),
    "output_multiplier": (1, 1.0),
    "final_logit_softcapping": (0, 0.0),
}
"""Choices of published heads, with the values that the pass implements. Null is unset."""
_READ = (
    "target_layer_ids", "block_size", "mask_token_id", "draft_vocab_size", "markov_rank", "markov_head_type",
    "enable_confidence_head", "confidence_head_with_markov", "num_target_layers", "conv_kernel_size",
    "conv_group_size", "selector_rank", "selector_top_k",
)  # fmt: skip
"""Members of dflash_config that are read; num_target_layers is the base's number of layers."""


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """Shapes and choices of one head (DFlash; DSpark, arXiv 2607.05147; DFlash2). Sizes in elements.

    `fc` projects the target's concatenated residual streams after `feature_layers` decoder layers to `hidden_size`; all
    layers compute keys and values of its normed output. The rows of a block are the last committed token and mask
    tokens.
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
    feature_layers: tuple[int, ...]
    block_size: int
    mask_token: int
    from_first: bool  # whether the first row drafts too: row i drafts the next token, not a mask row its own
    rope: dict[str, Any]
    trained_length: int
    attention_bias: bool
    windows: tuple[int, ...]  # by layer, context that its rows see besides the block; 0 is all
    markov_rank: int  # rank of the previous token's contribution to logits; 0 is none
    confidence: bool  # whether it estimates the acceptance of its tokens
    confidence_reads_token: bool  # the previous token, besides the state
    own_embeddings: bool
    own_output: bool
    # of DFlash2, in published layouts only
    taps: int = 0  # of the convolutions round attention and MLP, along a block's rows; 0 is none
    tap_group: int = 1  # channels that share a computed factor
    selector_rank: int = 0  # rank of a score of token after token, for the likeliest tokens; 0 is none
    selector_top: int = 0  # how many tokens it scores; others are not drafted

    mlp_bias: ClassVar[bool] = False
    head_norms: ClassVar[bool] = True

    @property
    def output_bias(self) -> bool:
        return self.attention_bias

    @property
    def drafts(self) -> int:
        """Count of draft tokens of a block."""
        return self.block_size if self.from_first else self.block_size - 1

    def check(self) -> None:
        """Raises HeadConfigInvalid, naming the field, for sizes that no head can have."""
        check_sizes(self)
        least = 1 if self.from_first else 2
        _within("block_size", self.block_size, least, MOST_BLOCK)
        _within("mask_token_id", self.mask_token, 0, self.vocab_size - 1)
        _within("markov_rank", self.markov_rank, 0, self.hidden_size)
        of_base = self.vocab_size, self.target_hidden_size
        if not self.own_output and (self.draft_vocab_size, self.hidden_size) != of_base:
            raise HeadConfigInvalid(
                "lm_head is missing; the base's lm_head needs its whole vocabulary and its hidden size"
            )
        if len(self.windows) != self.layers or any(type(window) is not int or window < 0 for window in self.windows):
            raise HeadConfigInvalid(f"windows is {list(self.windows)!r:.80}; expected {self.layers} whole numbers")
        if self.confidence_reads_token and not (self.confidence and self.markov_rank):
            raise HeadConfigInvalid("confidence_head_with_markov: expected a confidence head and a markov_rank")
        if self.taps:
            _within("conv_kernel_size", self.taps, 1, self.block_size)
            _within("conv_group_size", self.tap_group, 1, self.hidden_size)
            if self.hidden_size % self.tap_group:
                raise HeadConfigInvalid(f"conv_group_size {self.tap_group} does not divide {self.hidden_size}")
        if self.selector_rank:
            _within("selector_rank", self.selector_rank, 1, self.hidden_size)
            _within("selector_top_k", self.selector_top, 1, self.vocab_size)
            if self.draft_vocab_size != self.vocab_size:
                raise HeadConfigInvalid(f"draft_vocab_size {self.draft_vocab_size}: a selector needs all tokens")
        rotation_of_head(self)


def _within(name: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise HeadConfigInvalid(f"{name} is {value!r:.80}; expected a whole number from {least} to {most}")


def block_shapes(config: BlockConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every float tensor of a head, the same names in all layouts; weights are [out, in]."""
    hidden, rank = config.hidden_size, config.markov_rank
    shapes: dict[str, tuple[int, ...]] = {
        FC: (hidden, len(config.feature_layers) * config.target_hidden_size),
        CONTEXT_NORM: (hidden,),
        NORM: (hidden,),
    }
    for number in range(config.layers):
        shapes |= block_layer(config, number).shapes(hidden)
        for part in (ATTENTION_CONVOLUTION, MLP_CONVOLUTION) if config.taps else ():
            shapes[f"layers.{number}.{part}{BASE_KERNEL}"] = (2, config.taps, hidden)
            shapes[f"layers.{number}.{part}{KERNEL_PROJECTION}"] = (
                2 * config.taps * (hidden // config.tap_group), hidden,
            )  # fmt: skip
    if config.own_embeddings:
        shapes[EMBEDDING] = (config.vocab_size, hidden)
    if config.own_output:
        shapes[OUTPUT] = (config.draft_vocab_size, hidden)
    if rank:
        shapes |= {MARKOV_IN: (config.vocab_size, rank), MARKOV_OUT: (config.draft_vocab_size, rank)}
    if config.confidence:
        reads = hidden + (rank if config.confidence_reads_token else 0)
        shapes |= {CONFIDENCE: (1, reads), CONFIDENCE_BIAS: (1,)}
    if config.selector_rank:
        book = config.vocab_size, config.selector_rank
        shapes |= {BEFORE: book, AFTER: book, STATE_PROJECTION: (config.selector_rank, hidden)}
    return shapes


def block_layer(config: BlockConfig, number: int) -> LayerSpec:
    """A layer for the target's kernels. Its rows see a window of the context besides their block."""
    spec = decoder_layer(config, f"layers.{number}.", inputs=config.hidden_size)
    window = config.windows[number]
    return replace(spec, window=window + config.block_size if window else 0)


@dataclass(frozen=True, slots=True)
class BlockHead:
    """A head in memory, checked against its config and its base; pure data, which `BlockPass` computes with."""

    kind: ClassVar[str] = "block"

    origin: str
    config: BlockConfig
    tensors: dict[str, Float32]  # by the names of `block_shapes`
    target_ids: Int64  # [draft_vocab_size] the target's token of each draft token


def is_block(document: Mapping[str, Any]) -> bool:
    """Whether a config.json is in one of the three layouts."""
    return _origin(document) is not None


def _origin(document: Mapping[str, Any]) -> str | None:
    if document.get("layout") == LAYOUT:
        return "kolm"
    if document.get("speculators_model_type") in SPECULATORS:
        return "speculators"
    architectures = document.get("architectures")
    if isinstance(architectures, list) and architectures and architectures[0] in ARCHITECTURES:
        return "deepspec"
    return None


def load_block_head(directory: Path, base: TargetConfig) -> BlockHead:
    """Read a head's folder in any of the three layouts: see `HeadKind.load`."""
    found = _described(directory, base)
    return BlockHead(found.origin, found.config, found.tensors(), found.target_ids())


def _described(directory: Path, base: TargetConfig) -> Described[BlockConfig]:
    document = read_document(directory)
    origin = _origin(document)
    if origin is None:
        raise HeadConfigInvalid(f"config.json: not a block head; expected {KNOWN_BY}")
    stored = Stored(read_weights(directory))
    names = stored.parts.keys()
    if origin == "kolm":
        config = parse_block_config(document)
    elif origin == "speculators":
        config = _read_speculators(document, names)
    else:
        config = _read_flat(document, names)
    found = Described(origin, config, stored, block_shapes(config))
    found.check(base)
    return found


def parse_block_config(document: Mapping[str, Any]) -> BlockConfig:
    """The configuration. Raises HeadConfigInvalid, naming a missing, unknown, mistyped or out-of-range member."""
    values = _LAYOUT.values(document)
    config = BlockConfig(**values | {"windows": tuple(values["windows"])})
    config.check()
    return config


def _read_speculators(document: Mapping[str, Any], names: Any) -> BlockConfig:
    """The layout of speculators. Layer ids are used literally: id i is the stream after i layers. The nested config
    contains only differences from transformers' defaults.
    """
    nested = document.get("transformer_layer_config")
    if not isinstance(nested, dict):
        raise HeadConfigInvalid(f"config.json: transformer_layer_config is {nested!r:.80}; expected an object")
    check_choices(document, _SUPPORTED)
    dspark, dflash2 = (document["speculators_model_type"] == kind for kind in ("dspark", "dflash2"))
    sees_all = typed_or(document, "sliding_window_non_causal", dflash2, bool)
    return _config(
        nested, names,
        target_hidden_size=typed_or(document, "target_hidden_size", 0, int),
        draft_vocab_size=typed_or(document, "draft_vocab_size", 32_000, int),
        feature_layers=layer_numbers(document, "aux_hidden_state_layer_ids"),
        block_size=typed_or(document, "block_size", 8, int),
        mask_token=_required(document, "mask_token_id"),
        from_first=typed_or(document, "sample_from_anchor", dspark, bool),
        markov_rank=typed_or(document, "markov_rank", 256, int) if dspark else 0,
        markov_kind=typed_or(document, "markov_head_type", "vanilla", str),
        confidence=dspark and typed_or(document, "enable_confidence_head", True, bool),
        confidence_reads_token=dspark and typed_or(document, "confidence_head_with_markov", True, bool),
        windows_see_all=sees_all,
        **(_dflash2_choices(document, 2, 256) if dflash2 else {}),
    )  # fmt: skip


def _dflash2_choices(members: Mapping[str, Any], taps: int, rank: int) -> dict[str, int]:
    """Choices of DFlash2 by attribute; taps and rank have these defaults."""
    taps, rank = typed_or(members, "conv_kernel_size", taps, int), typed_or(members, "selector_rank", rank, int)
    return {
        "taps": taps,
        "tap_group": typed_or(members, "conv_group_size", 16, int) if taps else 1,
        "selector_rank": rank,
        "selector_top": typed_or(members, "selector_top_k", 16, int) if rank else 0,
    }


def _read_flat(document: Mapping[str, Any], names: Any) -> BlockConfig:
    """The flat layouts. Layer ids name layers whose output is read: id i is the stream after i + 1 layers, -1 the
    embeddings. z-lab puts some members into `dflash_config`, and its heads draft only from masks; DeepSpec's heads
    draft from the first row on.
    """
    nested = typed_or(document, "dflash_config", {}, dict)
    check_choices(nested, _SUPPORTED, within="dflash_config", known=_READ)
    check_choices(document, _SUPPORTED)
    members = {**document, **nested}
    deepspec = "target_layer_ids" in document
    confidence = typed_or(members, "enable_confidence_head", False, bool)
    return _config(
        document, names,
        target_hidden_size=0,
        draft_vocab_size=typed_or(members, "draft_vocab_size", 0, int),
        feature_layers=tuple(layer + 1 for layer in layer_numbers(members, "target_layer_ids")),
        block_size=_required(members, "block_size"),
        mask_token=_required(members, "mask_token_id"),
        from_first=deepspec,
        markov_rank=typed_or(members, "markov_rank", 0, int),
        markov_kind=typed_or(members, "markov_head_type", "vanilla", str),
        confidence=confidence,
        confidence_reads_token=confidence and typed_or(members, "confidence_head_with_markov", False, bool),
        windows_see_all=True,
        **_dflash2_choices(members, 0, 0),
    )  # fmt: skip


def _required(members: Mapping[str, Any], member: str) -> int:
    if members.get(member) is None:
        raise HeadConfigInvalid(f"config.json: {member} is missing; expected a whole number")
    return int(typed(members, member, int))


def _config(
    layer: Mapping[str, Any], names: Any, *, target_hidden_size: int, draft_vocab_size: int, markov_kind: str,
    windows_see_all: bool, **choices: Any,
) -> BlockConfig:  # fmt: skip
    """The configuration of a published head. Tensors determine biases, embeddings and the output matrix; sizes of 0 are
    derived from the layers.
    """
    kind = layer.get("model_type", "qwen3")
    if kind != "qwen3":
        raise HeadConfigInvalid(f"config.json: model_type is {kind!r:.80}; expected qwen3")
    if markov_kind != "vanilla":
        raise HeadConfigInvalid(f"config.json: markov_head_type is {markov_kind!r:.80}; supported: vanilla")
    if layer.get("hidden_act", "silu") != "silu":
        raise HeadConfigInvalid(f"config.json: hidden_act is {layer['hidden_act']!r:.80}; supported: silu")
    parsed, sizes = published_sizes(Qwen3Config, layer)
    config = BlockConfig(
        **sizes,
        target_hidden_size=target_hidden_size or sizes["hidden_size"],
        draft_vocab_size=draft_vocab_size or sizes["vocab_size"],
        attention_bias="layers.0.self_attn.q_proj.bias" in names,
        windows=_windows(parsed, windows_see_all),
        own_embeddings=EMBEDDING in names,
        own_output=OUTPUT in names,
        **choices,
    )
    config.check()
    return config


def _windows(parsed: Qwen3Config, see_all: bool) -> tuple[int, ...]:
    kinds = list(parsed.layer_types or [])
    windows = tuple(int(parsed.sliding_window or 0) if kind == "sliding_attention" else 0 for kind in kinds)
    if any(windows) and not see_all:
        raise HeadConfigInvalid(
            "config.json: layer_types has sliding_attention without sliding_window_non_causal; rows that do not see "
            "all of their block are not supported"
        )
    return windows


def write_block_head(directory: Path, config: BlockConfig, tensors: Mapping[str, Part]) -> None:
    """Write a head in kolm's layout: see `Layout.write`."""
    config.check()
    shapes, own = block_shapes(config), config.draft_vocab_size
    _LAYOUT.write(directory, config, shapes | ({"d2t": (own,)} if own < config.vocab_size else {}), tensors)
