"""The context that is served: the model's own, at most 8,192 unless more is asked for, never more than its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from services.generation.target.config.config import DEFAULT_MOST, TargetConfig, bounded, explained
from services.generation.target.cpu import load_target
from services.generation.target.errors import ConfigInvalid
from tests.fakes.table_target import VOID, TableTarget


def config(own: int) -> TargetConfig:
    return replace(TableTarget(VOID).config, context_length=own)


@pytest.mark.parametrize(
    ("own", "asked", "served"),
    [(2048, None, 2048), (131_072, None, DEFAULT_MOST), (131_072, 131_072, 131_072), (2048, 100, 100)],
)
def test_what_is_served(own: int, asked: int | None, served: int) -> None:
    assert bounded(config(own), asked) == config(served)


@pytest.mark.parametrize("asked", [0, 2049])
def test_more_than_the_model_s_own_is_refused_by_the_flag(asked: int) -> None:
    with pytest.raises(ConfigInvalid, match=rf"--context-length: {asked} tokens; .* at most 2048"):
        bounded(config(2048), asked)


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
