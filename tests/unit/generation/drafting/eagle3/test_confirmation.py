"""A published head's layers are those with which it is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from services.generation.drafting.eagle3.checkpoint import head_shapes
from services.generation.drafting.eagle3.head_pass import Head
from services.generation.drafting.eagle3.loading import confirm_layers
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput
from tests.fakes.heads import head_config
from tests.fakes.table_target import TableTarget

VOCAB = 8


class Signpost(TableTarget):
    """After token t comes t + 1; the streams after some layers point at t + 2, which is what a head must say."""

    def __init__(self, *telling: int) -> None:
        table = np.zeros((VOCAB, VOCAB), np.float32)
        table[np.arange(VOCAB), (np.arange(VOCAB) + 1) % VOCAB] = 5.0
        super().__init__(table)
        self.config = replace(self.config, hidden_size=VOCAB, layers=8)
        self._telling = telling

    def embed(self, tokens: np.ndarray) -> np.ndarray:
        return np.eye(VOCAB, dtype=np.float32)[tokens]

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        pointing = np.eye(VOCAB, dtype=np.float32)[(rows.tokens + 2) % VOCAB]
        streams = [pointing if layer in self._telling else np.zeros_like(pointing) for layer in feature_layers]
        logits = super().forward(rows).logits
        return PassOutput(logits, np.concatenate(streams, axis=1) if streams else np.empty((len(rows), 0), np.float32))


def passing_through(target: Signpost, layers: tuple[int, ...], others: tuple[tuple[int, ...], ...]) -> Head:
    """A head that says what its streams say: nothing but `fc` and the output does anything."""
    config = head_config(target.config, feature_layers=layers, draft_vocab_size=VOCAB)
    tensors = {name: torch.zeros(shape) for name, shape in head_shapes(config).items()}
    tensors = {name: t + 1.0 if len(t.shape) == 1 else t for name, t in tensors.items()}
    tensors["fc.weight"] = torch.cat([torch.eye(VOCAB)] * len(layers), dim=1)
    tensors["lm_head.weight"] = torch.eye(VOCAB)
    return Head("safeailab", config, {name: t.numpy() for name, t in tensors.items()}, np.arange(VOCAB), others)


@pytest.mark.parametrize("telling", [2, 1, 7])
def test_the_reading_that_is_right_is_taken(telling: int, caplog: pytest.LogCaptureFixture) -> None:
    target = Signpost(telling)
    head = passing_through(target, (2, 4, 6), ((1, 3, 5), (3, 5, 7)))
    assert confirm_layers(head, target, [1, 2, 3]).config.feature_layers[0 if telling < 3 else -1] == telling
    assert bool(caplog.records) == (telling != 2)
    assert target.blocks.used == 0


def test_where_nothing_tells_the_layout_is_believed() -> None:
    target = Signpost()
    head = passing_through(target, (2, 4, 6), ((1, 3, 5), (3, 5, 7)))
    assert confirm_layers(head, target, [1, 2, 3]) is head


def test_an_explicit_head_is_not_questioned() -> None:
    target = Signpost(1)
    head = passing_through(target, (2, 4, 6), ())
    assert confirm_layers(head, target, [1, 2, 3]) is head
