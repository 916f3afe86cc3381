"""Which layers a published head reads: as its layout says, confirmed by the head's accuracy.

Engines disagree on whether an id names a layer's input or its output, and heads have been published for either. With
the neighbouring layers a head still drafts, but badly. So the readings are compared on text of the target's own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.eagle3.head import Head
from services.generation.drafting.eagle3.head_pass import HeadPass
from services.generation.drafting.eagle3.loading import with_layers
from services.generation.target.blocks import blocks_for
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target

_log = logging.getLogger(__name__)

_CONTINUED = 48  # tokens that the target adds to the probe prompt
_CLEARLY = 1.25  # times as accurate: another reading that reaches this replaces the layout's


def confirm_layers(head: Head, target: Target, prompt: Sequence[int]) -> Head:
    """The head with the feature layers that serve it; the layout's unless another reading is clearly right more often.

    The target continues `prompt` greedily. A head with an explicit config is returned as it is.

    Raises:
        CacheFull: the target's cache has no room for the prompt and 48 tokens; confirm before serving.
    """
    if not head.other_layers:
        return head
    readings = (head.config.feature_layers, *head.other_layers)
    right = _agreement(head, target, prompt, readings)
    best = max(readings, key=lambda layers: right[layers])
    said = readings[0]
    if right[best] > _CLEARLY * right[said]:
        _log.warning(
            "head: layers %s are right on %.0f %% of a probe, layers %s, as its %s layout says, on %.0f %%; taking %s",
            best, 100 * right[best], said, head.origin, 100 * right[said], best,
        )  # fmt: skip
        return with_layers(head, best)
    _log.info("head: feature layers %s confirmed, right on %.0f %% of a probe", said, 100 * right[said])
    return head


def _agreement(
    head: Head, target: Target, prompt: Sequence[int], readings: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], float]:
    """How often the head's first choice is the target's next token, for each reading of its layers."""
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


def _continued(target: Target, prompt: Sequence[int], layers: Sequence[int]) -> tuple[list[int], NDArray[np.float32]]:
    """The prompt and its greedy continuation, and the streams [tokens - 1, layers, hidden] of all but the last."""
    tokens, table = list(prompt), list[int]()
    length = min(len(tokens) + _CONTINUED, target.config.context_length)
    target.blocks.extend(table, length)
    try:
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
    finally:
        target.blocks.release(table)
    wide = np.concatenate(streams)[: len(tokens) - 1]
    return tokens, wide.reshape(len(wide), len(layers), target.config.hidden_size)
