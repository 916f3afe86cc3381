"""Features of a pass: the residual stream at the layers asked for, read without touching a bit of the logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.generation.target.cpu import load_target
from services.generation.target.rows import Rows, RowsBuilder
from services.generation.target.target import Target
from tests.fakes.tiny_model import make_tiny_model

TOKENS = [(7 * i * i + 3 * i) % 384 for i in range(90)]
LAYERS = (3, 0, 2, 4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("deep"), layers=4)


@pytest.fixture(scope="module")
def target(directory: Path) -> Target:
    return load_target(directory)


def chunk(target: Target, tokens: list[int], at: int = 0, table: list[int] | None = None) -> Rows:
    table = [] if table is None else table
    target.blocks.extend(table, at + len(tokens))
    rows = RowsBuilder()
    rows.add_chunk(table, at, tokens, want_last=True)
    return rows.build()


def test_features_are_the_hidden_states_of_transformers(target: Target, directory: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        states = model(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    found = target.forward(chunk(target, TOKENS), LAYERS).features.reshape(len(TOKENS), len(LAYERS), -1)
    for place, layer in enumerate(LAYERS):
        if layer < target.config.layers:  # transformers normalises the last one
            np.testing.assert_allclose(found[:, place], states[layer][0].numpy(), rtol=1e-4, atol=2e-5)


def test_the_last_features_are_what_the_final_norm_takes(target: Target) -> None:
    one = target.forward(chunk(target, TOKENS), (target.config.layers,)).features
    assert one.shape == (len(TOKENS), target.config.hidden_size)
    assert not np.allclose(np.square(one).mean(axis=1), 1.0, atol=0.1)


def test_reading_features_changes_no_bit_of_the_logits(target: Target) -> None:
    without = target.forward(chunk(target, TOKENS))
    assert without.features.shape == (len(TOKENS), 0)
    assert target.forward(chunk(target, TOKENS), LAYERS).logits.tobytes() == without.logits.tobytes()


def test_features_of_a_row_do_not_depend_on_the_rows_beside_it(target: Target) -> None:
    together = target.forward(chunk(target, TOKENS), LAYERS).features
    table: list[int] = []
    pieces = [target.forward(chunk(target, TOKENS[at : at + 7], at, table), LAYERS).features for at in range(0, 90, 7)]
    assert np.concatenate(pieces).tobytes() == together.tobytes()


def test_rows_that_nobody_asks_about_leave_the_others_as_they_are(target: Target) -> None:
    tables: list[list[int]] = [[], [], []]
    for table in tables:
        target.blocks.extend(table, len(TOKENS) + 5)
    before = RowsBuilder()
    before.add_chunk(tables[0], 0, TOKENS, want_last=False)
    target.forward(before.build())
    mixed = RowsBuilder()
    mixed.add_chunk(tables[1], 0, TOKENS, want_last=True)
    mixed.add_tree(tables[0], len(TOKENS), [7, 8, 9, 10, 11], [-1, 0, 0, 1, 2])
    mixed.add_chunk(tables[2], 0, TOKENS[:40], want_last=False)
    rows = mixed.build()
    every = target.forward(rows, (target.config.layers,)).logits  # for the sake of their features, all go to the end
    assert target.forward(rows).logits.tobytes() == every.tobytes()
    assert every.shape == (6, target.config.vocab_size)
    few = replace(rows, wanted=rows.wanted[[0, 1, 3, 5]])  # of the tree: the root, one branch's first, another's last
    assert target.forward(few).logits.tobytes() == every[[0, 1, 3, 5]].tobytes()
