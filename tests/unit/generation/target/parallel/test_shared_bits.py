"""A model shared by ranks gives the bits of the model on one, in every family, whether sizes divide evenly or not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.generation.target.canonical.program.share import Share, check_share
from services.generation.target.config.config import read_config
from services.generation.target.cpu import CpuTarget
from services.generation.target.errors import RanksUnsupported
from services.generation.target.loading import load_target
from services.generation.target.rows import RowsBuilder
from tests.fakes.thread_peers import on_ranks
from tests.fakes.tiny_adapter import make_tiny_adapter
from tests.fakes.tiny_families import FAMILIES, draw_vectors
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_model import make_tiny_model
from tests.fakes.tiny_targets import TOKENS, logits_of, target_of
from tests.numerics.bits import assert_same_bits

WIDTHS = [1, 64, 25]


def check(path: Path, ranks: int, **options: Any) -> None:
    found = on_ranks(ranks, lambda peers: logits_of(target_of(path, threads=1, peers=peers, **options), WIDTHS))
    assert_same_bits(found[0], logits_of(target_of(path, threads=1, **options), WIDTHS))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_on_three_ranks_of_which_some_hold_no_head(family: str, tmp_path: Path) -> None:
    check(draw_vectors(make_tiny_model(tmp_path, **FAMILIES[family])), 3)


@pytest.mark.parametrize(("storage", "arithmetic"), [("q4_k", "float32"), ("q8_0", "int8"), ("bfloat16", "float32")])
def test_quantised_weights_on_two_ranks(storage: str, arithmetic: str, tmp_path: Path) -> None:
    check(make_tiny_gguf(tmp_path / "m.gguf", storage=storage), 2, arithmetic=arithmetic, cache_dtype="bfloat16")


@pytest.mark.parametrize("family", ["llama", "phi3"])  # with modules of their own, and put together
def test_adapters_are_shared_out_with_the_layers_that_they_update(family: str, tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "model", **FAMILIES.get(family, {}))
    fused = {"modules": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")} if family == "phi3" else {}
    adapters = {"a": make_tiny_adapter(tmp_path / "a", directory, **fused)}  # type: ignore[arg-type]

    def adapted(**options: Any) -> Any:
        target = load_target(directory, cache_tokens=2048, threads=1, adapters=adapters, **options)
        assert isinstance(target, CpuTarget)
        return _adapted_logits(target)

    assert_same_bits(on_ranks(3, lambda peers: adapted(peers=peers))[0], adapted())


def _adapted_logits(target: CpuTarget) -> Any:
    table: list[int] = []
    target.blocks.extend(table, len(TOKENS))
    rows = RowsBuilder()
    rows.add_tree(table, 0, TOKENS[:40], range(-1, 39), 0)
    return target.forward(rows.build()).logits.copy()


def test_each_rank_holds_its_share_of_weights_and_cache(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf", storage="q8_0", vocab=512)
    bytes_of = lambda target: (target.weight_bytes, target.cache_bytes)  # noqa: E731
    whole = bytes_of(target_of(path))
    assert on_ranks(2, lambda peers: bytes_of(target_of(path, peers=peers))) == [tuple(n // 2 for n in whole)] * 2


def test_more_ranks_than_outputs_are_refused_by_name(tmp_path: Path) -> None:
    config = replace(read_config(make_tiny_model(tmp_path)), intermediate_size=7)
    check_share(config, Share(0, 7))
    expected = "--tensor-parallel: 8 ranks; expected at most 7, the model's inputs of mlp.down_proj"
    with pytest.raises(RanksUnsupported, match=re.escape(expected)):
        check_share(config, Share(0, 8))
