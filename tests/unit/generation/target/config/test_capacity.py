"""How long a sequence may get, and how many blocks the cache has."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from services.generation.target.blocks import BLOCK
from services.generation.target.config.config import (
    DEFAULT_BYTES,
    DEFAULT_MOST,
    TargetConfig,
    block_bytes,
    bounded,
    cache_blocks,
    explained,
    feature_bytes,
)
from services.generation.target.cpu import load_target
from services.generation.target.errors import ConfigInvalid
from tests.fakes.table_target import VOID, TableTarget


def config_of(own: int) -> TargetConfig:
    return replace(TableTarget(VOID).config, context_length=own)


@pytest.mark.parametrize(
    ("own", "asked", "served"),
    [(2048, None, 2048), (131_072, None, DEFAULT_MOST), (131_072, 131_072, 131_072), (2048, 100, 100)],
)
def test_what_is_served(own: int, asked: int | None, served: int) -> None:
    assert bounded(config_of(own), asked) == config_of(served)


@pytest.mark.parametrize("asked", [0, 2049])
def test_more_than_the_model_s_own_is_refused_by_the_flag(asked: int) -> None:
    with pytest.raises(ConfigInvalid, match=rf"--context-length: {asked} tokens; .* at most 2048"):
        bounded(config_of(2048), asked)


def test_the_log_says_why() -> None:
    assert explained(8192, 131_072, None) == "context length 8192 of the model's 131072; raise it with --context-length"
    assert explained(2048, 2048, None) == "context length 2048, the model's own"
    assert explained(512, 2048, 512) == "context length 512 of the model's 2048, as --context-length says"


def test_a_target_is_loaded_with_it(tiny_model: Path) -> None:
    target = load_target(tiny_model, context_length=100, cache_bytes=1 << 20)
    assert target.config.context_length == 100
    assert target.blocks.total == (7 << 17) // (32 << 10)  # a block of the tiny model takes 32 KiB
    with pytest.raises(ConfigInvalid, match="--cache-bytes"):
        load_target(tiny_model, cache_bytes=1 << 16)


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
