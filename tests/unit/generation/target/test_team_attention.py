"""Attention by a team: whoever computes a row, it has the bits of one thread's."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from services.generation.target.attention import attend as attend_alone
from services.generation.target.blocks import BLOCK
from services.generation.target.team import team_size
from services.generation.target.team_attention import attend

HEADS, KV_HEADS, DIM = 4, 2, 24


def _pass(seed: int, rows: int) -> tuple[object, ...]:
    """The arguments of `attend` but for `out`: random sequences, lengths and branches."""
    random = np.random.default_rng(seed)
    sequences, blocks = 3, 4
    pool = sequences * blocks
    contiguous = random.integers(1, blocks * BLOCK, rows).astype(np.int32)
    branch_starts = np.cumsum([0, *random.integers(0, 3, rows)]).astype(np.int32)
    return (
        random.standard_normal((rows, HEADS + 2 * KV_HEADS, DIM), np.float32),
        HEADS,
        random.standard_normal((pool, KV_HEADS, DIM, BLOCK), np.float32),
        random.standard_normal((pool, KV_HEADS, BLOCK, DIM), np.float32),
        random.permutation(pool).reshape(sequences, blocks).astype(np.int32),
        random.integers(0, sequences, rows).astype(np.int32),
        (contiguous + np.diff(branch_starts) - 1).astype(np.int32),
        contiguous,
        branch_starts,
        random.integers(0, pool * BLOCK, int(branch_starts[-1])).astype(np.int32),
        int(random.choice([0, 50])),
        np.float32(DIM**-0.5),
    )


def _differing(threads: int) -> list[tuple[int, int]]:
    torch.set_num_threads(threads)
    differing = []
    for seed, rows in enumerate((1, 2, 3, 7, 33, 150)):
        arguments = _pass(seed, rows)
        alone, together = (np.full((rows, HEADS, DIM), np.nan, np.float32) for _ in range(2))
        attend_alone(*arguments, alone)
        attend(*arguments, together)  # type: ignore[arg-type]
        if alone.tobytes() != together.tobytes():
            differing.append((seed, rows))
    return differing


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_a_teams_rows_have_one_threads_bits(threads: int) -> None:
    before = torch.get_num_threads()
    try:
        assert _differing(threads) == []
    finally:
        torch.set_num_threads(before)


def test_a_team_smaller_than_asked_for_computes_every_row() -> None:
    code = f"from {__name__} import _differing; assert _differing(4) == []"
    environment = {**os.environ, "OMP_THREAD_LIMIT": "2", "PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_the_team_is_torchs() -> None:
    if sys.platform != "linux":
        pytest.skip("torch brings GNU OpenMP along on Linux only")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert team_size() == 2
    finally:
        torch.set_num_threads(before)
