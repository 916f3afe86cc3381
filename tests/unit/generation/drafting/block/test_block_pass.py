"""A block head computes what speculators computes with it, whatever was in its cache before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from services.generation.drafting.block.block_checkpoint import BlockHead, load_block_head
from services.generation.drafting.block.block_pass import BlockPass
from services.generation.target.arrays import Float32, Int64
from services.generation.target.config.config import TargetConfig, read_config
from services.generation.target.rows import RowsBuilder
from tests.fakes.tiny_model import make_tiny_model
from tests.vectors.make_block_heads import ANCHOR, BLOCK, FOLDER, HIDDEN, VOCABULARY, make


@dataclass
class Base:
    """As much of a target as a block head reads."""

    embeddings: Float32
    output: Float32
    threads: int = 2

    def embed(self, tokens: Int64) -> Float32:
        return self.embeddings[tokens]

    def unembed(self, states: Float32) -> Float32:
        return states @ self.output.T


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TargetConfig:
    config = read_config(make_tiny_model(tmp_path_factory.mktemp("base")))
    return replace(config, vocab_size=VOCABULARY, hidden_size=HIDDEN, layers=8)


@dataclass
class Drafted:
    states: Float32
    logits: Float32
    tokens: list[int]
    confidence: list[float]


def drafted(head: BlockHead, known: dict[str, Any], *, chunk: int, refused: int = 0, beside: int = 0) -> Drafted:
    """A block at the anchor, its context stored in chunks, after `refused` other blocks at earlier anchors; `beside`
    further sequences draft in the same pass.
    """
    config = head.config
    computing = BlockPass(head, Base(known["embeddings"], known["output"]), 128, 128)  # type: ignore[arg-type]
    table, others = list[int](), [list[int]() for _ in range(beside)]
    for each in (table, *others):
        computing.blocks.extend(each, ANCHOR + BLOCK)
    for start in range(0, ANCHOR, chunk):
        features = known["features"][start : min(start + chunk, ANCHOR)]
        rows = RowsBuilder()
        rows.add_chunk(table, start, [0] * len(features), False)
        computing.store(rows.build(), features)
        if refused:
            rows = RowsBuilder()
            rows.add_block(table, start + len(features), [9] * BLOCK, want_first=config.from_first)
            computing.draft(rows.build())
    rows = RowsBuilder()
    masks = [config.mask_token] * (BLOCK - 1)
    for each in others:
        rows.add_block(each, 3, [7, *masks], want_first=config.from_first)
    rows.add_block(table, ANCHOR, [int(known["tokens"][ANCHOR]), *masks], want_first=config.from_first)
    out = computing.draft(rows.build())
    states, logits = out.states[-config.drafts :], out.logits[-config.drafts :].copy()
    before, tokens, sure = int(known["tokens"][ANCHOR]), [], []
    for position in range(config.drafts):
        logits[position] = computing.add_previous(logits[position : position + 1], [before])[0]
        said = computing.confidence(states[position : position + 1], [before])
        sure += [] if said is None else said.tolist()
        before = int(head.target_ids[logits[position].argmax()])
        tokens.append(before)
    return Drafted(states, logits, tokens, sure)


def check(folder: Path, base: TargetConfig, **how: int) -> None:
    known = load_file(folder / "expected.safetensors")
    found = drafted(load_block_head(folder, base), known, **how)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.states, known["states"], atol=1e-4)
    np.testing.assert_allclose(found.logits, known["logits"], atol=1e-4)
    np.testing.assert_allclose(found.confidence, known["confidence"], atol=1e-4)
    assert found.tokens == known["drafts"].tolist()


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
@pytest.mark.parametrize("how", [{"chunk": 90}, {"chunk": 1}, {"chunk": 9, "refused": 1}, {"chunk": 64, "beside": 60}])
def test_states_and_drafts_are_those_of_speculators(kind: str, how: dict[str, int], base: TargetConfig) -> None:
    check(FOLDER / kind, base, **how)


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_the_installed_speculators_agrees(kind: str, base: TargetConfig, tmp_path: Path) -> None:
    pytest.importorskip("speculators.models.dspark")
    for seed in (2, 3):
        make(kind, tmp_path / f"{kind}-{seed}", seed)
        check(tmp_path / f"{kind}-{seed}", base, chunk=17)
