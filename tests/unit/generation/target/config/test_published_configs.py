"""config.json as publishers wrote it, with the names of older versions of transformers: what is read from it."""

import json
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.generation.target.blocks import BLOCK
from services.generation.target.config.config import (
    DEFAULT_BYTES,
    DEFAULT_MOST,
    TargetConfig,
    block_bytes,
    bounded,
    cache_blocks,
    feature_bytes,
    read_config,
)
from services.generation.target.config.layer_specs import layer_specs
from services.generation.target.config.rope import NO_ROTATION
from services.generation.target.cpu import load_target
from services.generation.target.errors import ConfigInvalid
from services.generation.target.family import Clamp, Temperature
from services.generation.target.kernels.attention.cache_dtypes import FORMS
from services.generation.target.probe import measure_profile
from services.generation.target.program.buffers import Cache
from services.generation.target.sizes import LEAST_CONTEXT
from services.generation.target.timing import time_keys, time_passes, time_row, time_seen
from tests.fakes.table_target import VOID, TableTarget

PUBLISHED = json.loads((Path(__file__).parents[4] / "vectors/published_configs.json").read_bytes())


def published(tmp_path: Path, name: str) -> TargetConfig:
    return read(tmp_path, **PUBLISHED[name])


def read(tmp_path: Path, **members: Any) -> TargetConfig:
    (tmp_path / "config.json").write_text(json.dumps(members))
    return read_config(tmp_path)


def test_phi_4_mini(tmp_path: Path) -> None:
    config = published(tmp_path, "phi-4-mini")
    (rotation,) = set(config.rotations)
    assert len(rotation.inverse_frequencies) == 48
    assert config.head_dim == 128
    assert rotation.trained == 4096
    assert rotation.long[4] == rotation.inverse_frequencies[4] / 2
    assert abs(rotation.factor - 1.1902380714238083) < 1e-7  # sqrt(1 + ln 32 / ln 4096)
    assert set(config.windows) == {262144}
    assert config.fused
    assert config.tied_embeddings


def test_phi_3_mini_128k(tmp_path: Path) -> None:
    """Its first version called the scaling `su`."""
    config = published(tmp_path, "phi-3-mini-128k")
    assert config.rotations[0].long[0] == 0.5
    assert config.rotations[0].trained == 4096


def test_gemma_3_1b(tmp_path: Path) -> None:
    config = published(tmp_path, "gemma-3-1b")
    assert [n for n, window in enumerate(config.windows) if not window] == [5, 11, 17, 23]
    assert {window for window in config.windows if window} == {512}
    local, whole = config.rotations[0], config.rotations[5]
    assert config.rotations[4] == local != whole
    assert local.inverse_frequencies[64] == 0.009999999776482582
    assert whole.inverse_frequencies[64] == 0.0010000000474974513
    assert (config.query_scale, config.attention_cap, config.logit_cap) == (0.0625, 0.0, 0.0)
    assert config.tied_embeddings
    assert config.head_norms
    assert config.eos_token_ids == (1, 106)


def test_lfm2_1_2b(tmp_path: Path) -> None:
    """Kinds of layers by their numbers, and an inner size that is derived from another."""
    config = published(tmp_path, "lfm2-1-2b")
    assert [number for number, taps in enumerate(config.convolutions) if not taps] == [2, 5, 8, 10, 12, 14]
    assert set(config.convolutions) == {0, 3}
    assert (config.intermediate_size, config.head_dim, config.norm_epsilon) == (8192, 64, 1e-05)
    assert config.head_norms
    assert config.tied_embeddings
    assert config.eos_token_ids == (7,)
    assert block_bytes(config, "bfloat16") == 2 * BLOCK * (10 * 2048 + 6 * 2 * 8 * 64)
    assert block_bytes(config, "int8") == BLOCK * (2 * 10 * 2048 + 6 * 2 * 8 * (64 + 4))


def test_gemma_2_27b(tmp_path: Path) -> None:
    config = published(tmp_path, "gemma-2-27b")
    assert config.windows[:4] == (4096, 0, 4096, 0)
    assert config.query_scale == 144**-0.5
    assert (config.attention_cap, config.logit_cap, config.embedding_scale) == (50.0, 30.0, 4608**0.5)


def test_smollm3_3b(tmp_path: Path) -> None:
    config = published(tmp_path, "smollm3-3b")
    assert [n for n, turn in enumerate(config.rotations) if not turn.inverse_frequencies] == list(range(3, 36, 4))
    assert set(config.windows) == {0}
    assert config.tied_embeddings


@pytest.mark.parametrize(("name", "sizes"), [("qwen3-30b-a3b", (128, 8, 768)), ("mixtral-8x7b", (8, 2, 14336))])
def test_experts_in_all_layers(name: str, sizes: tuple[int, int, int], tmp_path: Path) -> None:
    experts = published(tmp_path, name).experts
    assert experts is not None
    assert all(experts.layers)
    assert (experts.count, experts.chosen, experts.size, experts.normalised) == (*sizes, True)


def test_gpt_oss_20b(tmp_path: Path) -> None:
    config = published(tmp_path, "gpt-oss-20b")
    assert config.windows == (128, 0) * 12
    assert config.experts is not None
    assert (config.experts.count, config.experts.chosen, config.experts.size) == (32, 4, 2880)
    assert (config.experts.bias, config.experts.normalised) == (True, True)
    assert (config.sinks, config.clamp) == (True, Clamp(slope=1.702, limit=7.0))
    assert config.attention_bias
    assert config.output_bias
    assert abs(config.rotations[0].factor - 1.3465735902799727) < 1e-7  # 1 + ln(32) / 10


@pytest.mark.parametrize("tuning", [4, True, None])
@pytest.mark.parametrize("at_the_top", [True, False])
def test_llama_4_scout(tmp_path: Path, tuning: int | None, at_the_top: bool) -> None:
    """Published with 4 for true. End ids are outside of the text part or, in later files, in it."""
    members = deepcopy(PUBLISHED["llama-4-scout"])
    members["text_config"] |= {} if tuning is None else {"attn_temperature_tuning": tuning}
    (members if at_the_top else members["text_config"])["eos_token_id"] = [200001, 200007, 200008]
    config = read(tmp_path, **members)
    assert config.chunks == (8192, 8192, 8192, 0) * 12
    assert [rotation == NO_ROTATION for rotation in config.rotations] == [False, False, False, True] * 12
    assert config.rotations[0].interleaved
    assert config.temperature == Temperature(floor=8192, scale=0.1)
    assert config.unit_head_norms
    assert config.experts is not None
    assert (config.experts.count, config.experts.chosen, config.experts.shared) == (16, 1, 8192)
    assert all(config.experts.layers)
    assert config.eos_token_ids == (200001, 200007, 200008)


def test_llama_4_without_temperature_tuning(tmp_path: Path) -> None:
    config = published(tmp_path, "llama-4-without-temperature-tuning")
    assert config.temperature is None


def test_granite_4_h_micro(tmp_path: Path) -> None:
    members = PUBLISHED["granite-4-h-micro"]
    kinds = ["attention" if n in (5, 15, 25, 35) else "mamba" for n in range(40)]
    config = read(tmp_path, **members, layer_types=kinds)
    assert config.rule is not None
    assert [number for number, folds in enumerate(config.rule.layers) if not folds] == [5, 15, 25, 35]
    assert (config.rule.values, config.rule.cached, config.rule.state) == (4096, 4096 + 2 * 128 + 64, 128 * 4096)
    assert config.experts is None
    assert config.rotations == (NO_ROTATION,) * 40
    whole = read(tmp_path, **members | {"position_embedding_type": "rope"}, layer_types=["attention"] * 40)
    assert whole.rule is None
    assert whole.rotations[0] != NO_ROTATION


def test_falcon_3_7b(tmp_path: Path) -> None:
    config = published(tmp_path, "falcon-3-7b")
    assert (config.architecture, config.heads, config.head_dim) == ("llama", 12, 256)


def test_olmo_3_7b(tmp_path: Path) -> None:
    config = published(tmp_path, "olmo-3-7b")
    assert config.windows[:4] == (4096, 4096, 4096, 0)
    windowed, whole = config.rotations[0], config.rotations[3]
    assert (windowed.factor, whole.factor) == (1.0, pytest.approx(1.2079441))
    assert windowed.inverse_frequencies[-1] == pytest.approx(8 * whole.inverse_frequencies[-1])
    assert config.whole_norms
    assert not config.norms_before


def test_lfm2_8b_a1b(tmp_path: Path) -> None:
    config = published(tmp_path, "lfm2-8b-a1b")
    assert config.experts is not None
    assert config.experts.layers == (False,) * 2 + (True,) * 22
    assert config.experts.choice_bias
    assert (config.convolutions[0], config.convolutions[2]) == (3, 0)
    assert config.tied_embeddings


def test_ministral_3_8b(tmp_path: Path) -> None:
    members = deepcopy(PUBLISHED["ministral-3-8b"])
    config = read(tmp_path, **members)
    assert config.architecture == "ministral3"
    assert config.temperature == Temperature(16384, 0.1, ahead=0)
    assert config.rotations[0].factor == 1.0
    members["text_config"] |= {"model_type": "mistral", "rope_theta": 1000000000.0, "rope_parameters": None}
    older = read(tmp_path, **members)
    assert (older.architecture, older.temperature) == ("mistral", None)


def test_qwen3_8_27b(tmp_path: Path) -> None:
    config = published(tmp_path, "qwen3.8-27b")
    rule = config.rule
    assert rule is not None
    assert rule.layers == (True, True, True, False) * 16
    assert (rule.key_heads, rule.value_heads, rule.convolved, rule.taps, rule.tiled) == (16, 48, 10240, 4, True)
    assert (config.gated, config.norm_offset, config.tied_embeddings) == (True, 1.0, False)
    (rotation,) = set(config.rotations)
    assert len(rotation.inverse_frequencies) == 32


@pytest.mark.parametrize("tied", [True, False])
def test_qwen3_vl(tied: bool, tmp_path: Path) -> None:
    """tie_word_embeddings is outside of the text part."""
    config = read(tmp_path, **PUBLISHED["qwen3-vl-2b"], tie_word_embeddings=tied)
    assert config.tied_embeddings is tied
    assert config.head_norms
    assert config.rotations[0].inverse_frequencies[1] == pytest.approx(5000000 ** (-1 / 64))


def config_of(own: int) -> TargetConfig:
    return replace(TableTarget(VOID).config, context_length=own)


@pytest.mark.parametrize(
    ("own", "asked", "served"),
    [(2048, None, 2048), (131_072, None, DEFAULT_MOST), (131_072, 131_072, 131_072), (2048, 100, 100)],
)
def test_what_is_served(own: int, asked: int | None, served: int) -> None:
    assert bounded(config_of(own), asked) == config_of(served)


@pytest.mark.parametrize(("own", "asked"), [(2048, 31), (2048, 2049), (31, None)])
def test_a_context_that_is_too_short_or_longer_than_the_model_s_own_is_refused(own: int, asked: int | None) -> None:
    with pytest.raises(ConfigInvalid, match="--context-length"):
        bounded(config_of(own), asked)


def test_the_shortest_context_is_probed_and_timed(model: Path) -> None:
    target = load_target(model, context_length=LEAST_CONTEXT)
    assert measure_profile(target).passed
    assert time_passes(target).samples[-1][0] == LEAST_CONTEXT
    assert min(time_row(target), time_keys(target) + 1, time_seen(target) + 1) > 0


def test_a_target_is_loaded_with_it(model: Path) -> None:
    target = load_target(model, context_length=100, cache_bytes=1 << 20)
    assert target.config.context_length == 100
    assert target.blocks.total == (7 << 17) // (32 << 10)  # a block of the tiny model takes 32 KiB
    with pytest.raises(ConfigInvalid, match="--cache-bytes"):
        load_target(model, cache_bytes=1 << 16)


@pytest.fixture
def config() -> TargetConfig:
    """The configuration of a small Llama: a block takes 2.8 MiB in float32."""
    return replace(TableTarget(VOID).config, layers=30, kv_heads=3, head_dim=64, context_length=2048)


def test_a_block_holds_keys_and_values_of_all_layers(config: TargetConfig) -> None:
    assert block_bytes(config, "float32") == 2 * 4 * 30 * 3 * 64 * BLOCK
    assert block_bytes(config, "bfloat16") * 2 == block_bytes(config, "float32")
    assert block_bytes(config, "int8") == 2 * 30 * 3 * (64 + 4) * BLOCK


@pytest.mark.parametrize("dtype", FORMS)
@pytest.mark.parametrize("head_dim", [16, 24, 64, 80, 100, 112])
def test_a_block_takes_what_the_cache_allocates_for_it(config: TargetConfig, head_dim: int, dtype: str) -> None:
    config = replace(config, architecture="llama", layers=1, head_dim=head_dim)
    cache = Cache.empty(layer_specs(config), 2, [], [], FORMS[dtype])
    assert sum(part.nbytes for part in cache.block(0)) == block_bytes(config, dtype)


@pytest.mark.parametrize("size", [200 << 20, 1 << 30, 3 << 30])
def test_blocks_and_features_together_stay_within_the_bytes(config: TargetConfig, size: int) -> None:
    blocks, block = cache_blocks(config, "float32", tokens=None, size=size), block_bytes(config, "float32")
    assert size - block < blocks * block + feature_bytes(size) <= size


def test_by_default_a_gibibyte_at_least_one_context_and_at_most_64(config: TargetConfig) -> None:
    def blocks(**changes: int) -> int:
        return cache_blocks(replace(config, **changes), "float32", tokens=None, size=None)  # type: ignore[arg-type]

    assert blocks() == (DEFAULT_BYTES - feature_bytes(None)) // block_bytes(config, "float32")
    assert blocks(context_length=131_072) == 2048
    assert blocks(layers=1, kv_heads=1, head_dim=2, context_length=1024) == 64 * 16


def test_tokens_are_taken_as_they_are(config: TargetConfig) -> None:
    assert cache_blocks(config, "float32", tokens=65, size=None) == 2


def test_bytes_that_cannot_hold_one_context_are_refused_and_those_named_suffice(config: TargetConfig) -> None:
    with pytest.raises(ConfigInvalid, match="--cache-bytes") as refused:
        cache_blocks(config, "float32", tokens=None, size=1 << 20)
    named = re.search(r"at least (\d+) \((\d+) MiB\)", str(refused.value))
    assert named is not None
    for enough in (int(named[1]), int(named[2]) << 20):
        assert cache_blocks(config, "float32", tokens=None, size=enough) >= 2048 // BLOCK
    with pytest.raises(ConfigInvalid):
        cache_blocks(config, "float32", tokens=None, size=int(named[1]) - 1)
