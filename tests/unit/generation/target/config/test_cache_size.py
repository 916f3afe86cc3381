"""Bytes of cache become blocks; what cannot hold one sequence is refused with what would."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from services.generation.target.blocks import BLOCK
from services.generation.target.config.config import (
    DEFAULT_BYTES,
    TargetConfig,
    block_bytes,
    cache_blocks,
    feature_bytes,
)
from services.generation.target.errors import ConfigInvalid
from tests.fakes.table_target import VOID, TableTarget


@pytest.fixture
def config() -> TargetConfig:
    """The configuration of a small Llama: a block takes 2.8 MiB in float32."""
    return replace(TableTarget(VOID).config, layers=30, kv_heads=3, head_dim=64, context_length=2048)


def test_a_block_holds_keys_and_values_of_all_layers(config: TargetConfig) -> None:
    assert block_bytes(config, 4) == 2 * 4 * 30 * 3 * 64 * BLOCK
    assert block_bytes(config, 2) * 2 == block_bytes(config, 4)


@pytest.mark.parametrize("size", [200 << 20, 1 << 30, 3 << 30])
def test_blocks_and_features_together_stay_within_the_bytes(config: TargetConfig, size: int) -> None:
    blocks, block = cache_blocks(config, 4, tokens=None, size=size), block_bytes(config, 4)
    assert size - block < blocks * block + feature_bytes(size) <= size


def test_by_default_a_gibibyte_at_least_one_context_and_at_most_64(config: TargetConfig) -> None:
    def blocks(**changes: int) -> int:
        return cache_blocks(replace(config, **changes), 4, tokens=None, size=None)  # type: ignore[arg-type]

    assert blocks() == (DEFAULT_BYTES - feature_bytes(None)) // block_bytes(config, 4)
    assert blocks(context_length=131_072) == 2048
    assert blocks(layers=1, kv_heads=1, head_dim=2, context_length=1024) == 64 * 16


def test_tokens_are_taken_as_they_are(config: TargetConfig) -> None:
    assert cache_blocks(config, 4, tokens=65, size=None) == 2


def test_bytes_that_cannot_hold_one_context_are_refused_and_those_named_suffice(config: TargetConfig) -> None:
    with pytest.raises(ConfigInvalid, match=r"--cache-bytes: 1048576 bytes cannot hold .* 2048 tokens") as refused:
        cache_blocks(config, 4, tokens=None, size=1 << 20)
    named = re.search(r"at least (\d+) \((\d+) MiB\)", str(refused.value))
    assert named is not None
    for enough in (int(named[1]), int(named[2]) << 20):
        assert cache_blocks(config, 4, tokens=None, size=enough) >= 2048 // BLOCK
    with pytest.raises(ConfigInvalid):
        cache_blocks(config, 4, tokens=None, size=int(named[1]) - 1)
