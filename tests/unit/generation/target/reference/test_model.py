"""The compiled pass has the reference's bits: after every layer, and in the logits of every position."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from services.generation.target.adapters import Adapter, read_adapter
from services.generation.target.config.config import read_config
from services.generation.target.config.layer_specs import layer_specs
from services.generation.target.cpu import CpuTarget
from services.generation.target.files.stored_tensor import LAYOUTS
from services.generation.target.reference.model import Computed, ReferenceModel
from services.generation.target.rows import RowsBuilder
from services.generation.target.weights import open_weights
from tests.fakes.converted_gguf import convert
from tests.fakes.tiny_adapter import make_tiny_adapter
from tests.fakes.tiny_families import FAMILIES, draw_vectors
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_model import make_tiny_model
from tests.numerics.bits import assert_same_bits

pytestmark = pytest.mark.slow  # plain Python and numpy, number by number

TOKENS = [(7 * i * i + 3 * i) % 384 for i in range(140)]
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
MODELS: dict[str, dict[str, Any]] = {
    "llama, tied": {"tie_word_embeddings": True},
    "llama, biased, heads of 20": {"attention_bias": True, "mlp_bias": True, "head_dim": 20},
    "qwen2, yarn, sliding": {
        "architecture": "qwen2", "use_sliding_window": True, "sliding_window": 70, "max_window_layers": 1,
        "rope_parameters": YARN,
    },
    "qwen3, heads of 24": {"architecture": "qwen3", "head_dim": 24},
    "mistral, sliding, odd sizes": {
        "architecture": "mistral", "hidden": 72, "heads": 6, "kv_heads": 3, "intermediate_size": 101,
        "sliding_window": 40,
    },
} | FAMILIES  # fmt: skip


def target_of(path: Path, adapters: Sequence[Adapter] = (), **options: Any) -> CpuTarget:
    return CpuTarget(read_config(path), open_weights(path), 24, "", "", adapters, **options)


def computed_by(target: CpuTarget, tokens: list[int], adapter: int = -1) -> Computed:
    """In three passes, each a tree without branches."""
    layers = range(target.config.layers + 1)
    table: list[int] = []
    target.blocks.extend(table, len(tokens))
    logits, streams = [], []
    for start, end in pairwise([0, 3, len(tokens) // 3, len(tokens)]):
        rows = RowsBuilder()
        rows.add_tree(table, start, tokens[start:end], range(-1, end - start - 1), adapter)
        output = target.forward(rows.build(), layers)
        logits.append(output.logits.copy())
        streams.append(output.features.reshape(end - start, len(layers), -1).swapaxes(0, 1))
    target.blocks.release(table)
    return Computed(np.concatenate(logits), np.concatenate(streams, axis=1))


def check(path: Path, tokens: list[int] = TOKENS, **options: Any) -> None:
    found = computed_by(target_of(path, **options), tokens)
    reference = ReferenceModel(read_config(path), open_weights(path), **options)
    expected = reference.forward(tokens)
    for one, other in zip(found.streams, expected.streams, strict=True):
        assert_same_bits(one, other)
    assert_same_bits(found.logits, expected.logits)
    assert np.isfinite(expected.logits).all()


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_architectures(tmp_path: Path, model: dict[str, Any]) -> None:
    """The first in three blocks of the cache, the others in two, and past their windows."""
    draw_vectors(make_tiny_model(tmp_path, **model))
    check(tmp_path, TOKENS if model is next(iter(MODELS.values())) else TOKENS[:80])


def test_keys_and_values_in_bfloat16(tmp_path: Path) -> None:
    check(make_tiny_model(tmp_path), cache_dtype="bfloat16")


@pytest.mark.parametrize("storage", [name for name in LAYOUTS if name not in ("float32", "mxfp4")])
def test_gguf_files(tmp_path: Path, storage: str) -> None:
    architecture = "qwen3" if storage in ("q4_k", "bfloat16") else "llama"
    path = make_tiny_gguf(tmp_path / "tiny.gguf", architecture=architecture, storage=storage, tied=storage == "q6_k")
    check(path, TOKENS[:12])


@pytest.mark.parametrize("storage", ["q8_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "q5_k", "q6_k"])
def test_int8(tmp_path: Path, storage: str) -> None:
    check(make_tiny_gguf(tmp_path / "tiny.gguf", storage=storage, tied=storage == "q6_k"), arithmetic="int8")


def test_matrices_of_a_layer_in_different_storages(tmp_path: Path) -> None:
    """As published files mix them; those that cannot be packed together are computed apart or widened."""
    other: dict[str, Any] = {}
    make_tiny_gguf(tmp_path / "other.gguf", storage="q6_k", seed=1, change_tensors=other.update)
    names = [f"blk.0.{name}.weight" for name in ("attn_v", "ffn_up", "ffn_down")]
    path = make_tiny_gguf(
        tmp_path / "mixed.gguf",
        storage="q4_k",
        change_tensors=lambda t: t.update({name: other[name] for name in names}),
    )
    assert {open_weights(path).storage(f"model.layers.0.self_attn.{m}_proj.weight") for m in "qkv"} == {"q4_k", "q6_k"}
    check(path, TOKENS[:12])


def test_adapters(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "base", architecture="mistral", hidden=72, heads=6, kv_heads=3)
    config = read_config(base)
    adapters = [
        read_adapter(name, make_tiny_adapter(tmp_path / name, base, seed=seed, **options), config, base, "")
        for seed, (name, options) in enumerate(
            {
                "all": {}, "some": {"modules": ("q_proj", "up_proj"), "rank": 7, "layers": [1], "use_rslora": True},
                "wide": {"rank": 40},
            }.items()
        )
    ]  # fmt: skip
    target, tokens = target_of(base, adapters), TOKENS[:60]
    for number, adapter in enumerate([*adapters, None]):
        expected = ReferenceModel(config, open_weights(base), adapter).forward(tokens)
        found = computed_by(target, tokens, number if adapter else -1)
        assert_same_bits(found.logits, expected.logits)
        for one, other in zip(found.streams, expected.streams, strict=True):
            assert_same_bits(one, other)


@pytest.mark.parametrize("arithmetic", ["float32", "int8"])
@pytest.mark.parametrize("architecture", ["phi3", "gemma2", "mixtral"])
def test_quantised_files_of_other_families(tmp_path: Path, architecture: str, arithmetic: str) -> None:
    """Fused modules, norms around one and tensors of all experts, in blocks."""
    directory = draw_vectors(make_tiny_model(tmp_path / "d", architecture=architecture, tie_word_embeddings=False))
    path = convert(directory, tmp_path / "m.gguf", GGMLQuantizationType.Q8_0)
    weights = open_weights(path)
    matrices = {weights.storage(name) for name in weights.names() if len(weights.shape(name)) == 2}
    assert "q8_0" in matrices
    check(path, TOKENS[:40], arithmetic=arithmetic)


def test_adapters_of_fused_modules(tmp_path: Path) -> None:
    members = {"architecture": "phi3", "hidden": 72, "heads": 6, "kv_heads": 3, "intermediate_size": 101}
    base, modules = make_tiny_model(tmp_path / "base", **members), ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    config = read_config(base)
    adapter = read_adapter("a", make_tiny_adapter(tmp_path / "a", base, modules=modules), config, base, "")
    expected = ReferenceModel(config, open_weights(base), adapter).forward(TOKENS[:60])
    assert_same_bits(computed_by(target_of(base, [adapter]), TOKENS[:60], 0).logits, expected.logits)


def test_a_layer_by_itself_is_that_of_the_whole(tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path)
    reference = ReferenceModel(read_config(path), open_weights(path))
    streams = reference.forward(TOKENS[:5]).streams
    for number, spec in enumerate(layer_specs(read_config(path))):
        assert_same_bits(reference.layer(number, spec, streams[number], {}), streams[number + 1])
