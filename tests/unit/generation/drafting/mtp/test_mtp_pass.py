"""The block's pass computes what speculators' MTPDraftModel computes (tests/vectors/make_mtp)."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from services.generation.drafting.mtp.block_weights import MtpBlock, read_block
from services.generation.drafting.mtp.mtp_pass import MtpPass
from services.generation.target.arrays import Float32
from services.generation.target.cpu import CpuTarget
from tests.fakes.mtp_models import MODELS
from tests.fakes.rows import chunk_rows, tree_rows
from tests.fakes.tiny_model import target_of
from tests.vectors.make_mtp import ANCHOR, FOLDER, STEPS

EXPECTED = {name: load_file(FOLDER / name / "expected.safetensors") for name in MODELS}


def block_of(folder: Path, target: CpuTarget, tokens: range | None = None) -> MtpBlock:
    block = read_block(folder, target.config, None if tokens is None else np.array(tokens))
    assert block is not None
    return block


def features_of(target: CpuTarget, tokens: list[int], pieces: int = 1) -> Float32:
    """The stream after the last layer, of every token."""
    found, at = [], 0
    with target.blocks.lent(len(tokens)) as table:
        for piece in np.array_split(tokens, pieces):
            rows = chunk_rows(table, at, list(map(int, piece)))
            found.append(target.forward(rows, (target.config.layers,)).features)
            at += len(piece)
    return np.concatenate(found)


@pytest.mark.parametrize("name", MODELS)
def test_states_are_those_of_speculators(name: str) -> None:
    expected, target = EXPECTED[name], target_of(FOLDER / name)
    tokens = expected["tokens"].tolist()
    computing = MtpPass(block_of(FOLDER / name, target), target, 8)
    table: list[int] = []
    computing.blocks.extend(table, len(tokens))
    out = computing.read(tree_rows(table, 0, tokens[1:]), features_of(target, tokens)[:-1])
    assert np.abs(out.states - expected["states"]).max() < 1e-4


@pytest.mark.parametrize("drafted", [None, range(0, 320, 2)])
@pytest.mark.parametrize("name", MODELS)
def test_a_chain_drafts_what_speculators_drafts(name: str, drafted: range | None) -> None:
    """The cache is filled in two passes, of which the first computes keys and values alone."""
    expected, target = EXPECTED[name], target_of(FOLDER / name)
    tokens = expected["tokens"].tolist()[: ANCHOR + 2]
    features = features_of(target, tokens, pieces=3)
    block = block_of(FOLDER / name, target, drafted)
    computing = MtpPass(block, target, 8)
    table: list[int] = []
    computing.blocks.extend(table, len(tokens) + STEPS)
    computing.read(chunk_rows(table, 0, tokens[1 : ANCHOR + 1], want_last=False), features[:ANCHOR])
    out = computing.read(tree_rows(table, ANCHOR, tokens[ANCHOR + 1 :]), features[ANCHOR : ANCHOR + 1])
    for step, (state, draft) in enumerate(zip(expected["chain_states"], expected["drafts"].tolist(), strict=True)):
        assert np.abs(out.states[0] - state).max() < 1e-4
        found = int(block.target_ids[out.logits[0].argmax()])
        assert found == draft or draft not in block.target_ids
        out = computing.step(tree_rows(table, ANCHOR + 1 + step, [draft]), out.states.copy())
