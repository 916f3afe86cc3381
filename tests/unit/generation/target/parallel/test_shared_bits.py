"""A model shared by ranks gives the bits of the model on one, in every family, whatever divides evenly and what not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.thread_peers import on_ranks
from tests.fakes.tiny_families import FAMILIES, draw_vectors
from tests.fakes.tiny_model import make_tiny_model
from tests.fakes.tiny_targets import logits_of, target_of
from tests.numerics.bits import assert_same_bits

WIDTHS = [1, 64, 25]


def check(path: Path, ranks: int, **options: object) -> None:
    found = on_ranks(ranks, lambda peers: logits_of(target_of(path, threads=1, peers=peers, **options), WIDTHS))
    assert_same_bits(found[0], logits_of(target_of(path, threads=1, **options), WIDTHS))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family(family: str, tmp_path: Path) -> None:
    check(draw_vectors(make_tiny_model(tmp_path, **FAMILIES[family])), 3)
