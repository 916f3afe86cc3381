"""Loading of an EAGLE-3 head's folder: its layout, checks, comparison with the base. safetensors only."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from services.generation.drafting.eagle3.checkpoint import (
    ARCHITECTURES,
    LAYOUT,
    Head,
    HeadConfig,
    Origin,
    default_layers,
    head_shapes,
    parse_config,
    read_safeailab,
    read_speculators,
)
from services.generation.drafting.eagle3.head_pass import HeadPass
from services.generation.drafting.heads import Described, HeadConfigInvalid, Stored, read_document, read_weights
from services.generation.target.arrays import Float32
from services.generation.target.blocks import blocks_for
from services.generation.target.config.config import TargetConfig
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target

_log = logging.getLogger(__name__)


_CONTINUED = 48  # tokens that the target adds to the probe prompt
_CLEARLY = 1.25  # times as accurate: another reading of the layers has to reach this


def confirm_layers(head: Head, target: Target, prompt: Sequence[int]) -> Head:
    """The head with its best feature layers: the layout's, unless another reading is clearly more accurate.

    The target continues `prompt` greedily. A head with an explicit config is returned unchanged.

    Raises:
        CacheFull: the target's cache has no room for the prompt and 48 tokens; confirm before serving.
    """
    if not head.other_layers:
        return head
    readings = (head.config.feature_layers, *head.other_layers)
    right = _agreement(head, target, prompt, readings)
    best = max(readings, key=lambda layers: right[layers])
    by_layout = readings[0]
    if right[best] > _CLEARLY * right[by_layout]:
        _log.warning(
            "head: layers %s are right on %.0f %% of a probe, layers %s, as in its %s layout, on %.0f %%; taking %s",
            best, 100 * right[best], by_layout, head.origin, 100 * right[by_layout], best,
        )  # fmt: skip
        return with_layers(head, best)
    _log.info("head: feature layers %s confirmed, right on %.0f %% of a probe", by_layout, 100 * right[by_layout])
    return head


def _agreement(
    head: Head, target: Target, prompt: Sequence[int], readings: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], float]:
    """The share of positions at which the head's first choice is the target's token, by reading of its layers."""
    layers = sorted({layer for reading in readings for layer in reading})
    tokens, streams = _continued(target, prompt, layers)
    expected = np.array(tokens[2:])  # entry i predicts the token at i + 2
    blocks, length = blocks_for(len(tokens)), target.config.context_length
    computing = HeadPass(head, target.embed, blocks, length, threads=target.threads)
    table: list[int] = []
    computing.blocks.extend(table, len(tokens))
    rows = RowsBuilder()
    rows.add_tree(table, 0, tokens[1:-1], range(-1, len(tokens) - 3))
    found = {}
    for reading in readings:
        features = streams[:, [layers.index(layer) for layer in reading]].reshape(len(streams), -1)
        logits = computing.read(rows.build(), features[: len(expected)]).logits
        guesses = head.target_ids[logits.argmax(axis=1)]
        found[reading] = float(np.mean(guesses[len(prompt) - 2 :] == expected[len(prompt) - 2 :]))
    return found


def _continued(target: Target, prompt: Sequence[int], layers: Sequence[int]) -> tuple[list[int], Float32]:
    """The prompt and its greedy continuation, and the streams [tokens - 1, layers, hidden] without the last token's."""
    tokens = list(prompt)
    length = min(len(tokens) + _CONTINUED, target.config.context_length)
    with target.blocks.lent(length) as table:
        rows = RowsBuilder()
        rows.add_chunk(table, 0, tokens, want_last=True)
        out = target.forward(rows.build(), layers)
        streams = [out.features]
        while len(tokens) < length:
            tokens.append(int(out.logits[-1].argmax()))
            rows = RowsBuilder()
            rows.add_tree(table, len(tokens) - 1, tokens[-1:], [-1])
            out = target.forward(rows.build(), layers)
            streams.append(out.features)
    wide = np.concatenate(streams)[: len(tokens) - 1]
    return tokens, wide.reshape(len(wide), len(layers), target.config.hidden_size)


def load_head(directory: Path, base: TargetConfig) -> Head:
    """Read a head's folder in any of the three layouts: see `HeadKind.load`."""
    found = _described(directory, base)
    others = () if found.origin == "kolm" else _other_layers(found.config, base)
    return Head(found.origin, found.config, found.tensors(), found.target_ids(), others)


def is_eagle3(document: Mapping[str, Any]) -> bool:
    """Whether a config.json is in one of the three layouts."""
    named = document.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    try:
        return origin_of(document) != "safeailab" or first in ARCHITECTURES
    except HeadConfigInvalid:
        return False


def origin_of(document: Mapping[str, Any]) -> Origin:
    """The layout of a config.json. Raises HeadConfigInvalid for an unknown layout."""
    if document.get("layout") == LAYOUT:
        return "kolm"
    kind = document.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise HeadConfigInvalid(
            f"config.json: speculators_model_type is {kind!r:.80}; supported: eagle3, dflash, dspark, dflash2: take a "
            "head of one of these kinds for the same base, or train a head: kolm heads train"
        )
    if "transformer_layer_config" in document:
        return "speculators"
    if "draft_vocab_size" in document and "architectures" in document:
        return "safeailab"
    raise HeadConfigInvalid(
        f"config.json: unknown layout; expected layout {LAYOUT}, speculators_model_type eagle3, or a Llama config "
        "with draft_vocab_size (SafeAILab, SpecForge)"
    )


def _described(directory: Path, base: TargetConfig) -> Described[HeadConfig]:
    document = read_document(directory)
    origin, weights = origin_of(document), read_weights(directory)
    stored = Stored({_name(name, origin): part for name, part in weights.items()})
    config = _config(origin, document, stored.parts.keys(), base)
    found = Described(origin, config, stored, head_shapes(config))
    found.check(base)
    return found


def _config(origin: Origin, document: dict[str, Any], names: Any, base: TargetConfig) -> HeadConfig:
    if origin == "kolm":
        return parse_config(document)
    return (read_speculators if origin == "speculators" else read_safeailab)(document, names, base)


def _name(name: str, origin: Origin) -> str:
    """A tensor's name in kolm's layout."""
    return name.replace("layers.0.", "midlayer.", 1) if origin == "speculators" else name


def _other_layers(config: HeadConfig, base: TargetConfig) -> tuple[tuple[int, ...], ...]:
    """Other readings of published ids, which some engines read as inputs and others as outputs, and the default."""
    taken = config.feature_layers
    shifted = [tuple(layer + by for layer in taken) for by in (-1, 1)]
    candidates = [taken, *shifted, default_layers(base)]
    fitting = [c for c in dict.fromkeys(candidates) if len(c) == len(taken) and all(0 <= i <= base.layers for i in c)]
    return tuple(c for c in fitting if c != taken)


def with_layers(head: Head, feature_layers: tuple[int, ...]) -> Head:
    """A copy of this head that reads other target layers."""
    return replace(head, config=replace(head.config, feature_layers=feature_layers))
