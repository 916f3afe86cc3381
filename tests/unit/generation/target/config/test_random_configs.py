"""Whatever JSON is in config.json: it is read, or refused by an error of the target."""

import json
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.target.arrays import Bytes
from services.generation.target.config.config import (
    bounded,
    cache_blocks,
    read_config,
    read_gguf,
    rope_parameters,
    usual_cache,
)
from services.generation.target.errors import TargetError, UnsupportedArchitecture
from services.generation.target.files.gguf_file import GgufFile
from services.generation.target.files.gguf_header import GgufField, GgufHeader, GgufMetadata, Value, read_gguf_header
from services.generation.target.files.stored_tensor import map_file
from services.generation.target.weights import check_headers, check_weights, open_weights
from tests.examples import examples
from tests.fakes.converted_gguf import convert
from tests.fakes.tiny_families import FAMILIES, make_tiny_multimodal
from tests.fakes.tiny_model import make_tiny_model

MODELS = (
    "llama", "gpt_oss", "llama4", "gemma4, shared keys and inputs of layers", "granite_hybrid, experts", "lfm2_moe",
    "qwen3_5", "exaone4", "phi3, longrope beyond", "mistral3", "gemma3", "lfm2, wide taps, a size that follows",
)  # fmt: skip
WRAPPED = ("mistral3", "gemma3")
ROPE = (
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor",
    "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
    "partial_rotary_factor", "truncate", "full_attention", "sliding_attention", "llama_4_scaling_beta",
)  # fmt: skip
STRAY = (
    "rope_scaling", "layer_types", "sliding_window", "use_sliding_window", "per_layer_config", "moe_layers",
    "mlp_only_layers", "decoder_sparse_step", "num_dense_layers", "no_rope_layers", "shared_intermediate_size",
    "intermediate_size_mlp", "block_auto_adjust_ff_dim", "block_multiple_of", "block_ffn_dim_multiplier",
    "time_step_limit", "num_experts", "num_local_experts", "norm_topk_prob", "enable_moe_block",
    "quantization_config",
)  # fmt: skip
WORDS = (
    "", "x", "default", "linear", "yarn", "longrope", "llama3", "dynamic", "proportional", "su", "full_attention",
    "sliding_attention", "linear_attention", "chunked_attention", "attention", "mamba", "conv", "silu",
)  # fmt: skip


@dataclass(frozen=True)
class Written:
    """A model's directory and the document of its config.json."""

    directory: Path
    document: Mapping[str, Any]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    found = {}
    for name in MODELS:
        directory = tmp_path_factory.mktemp("model")
        if name in WRAPPED:
            make_tiny_multimodal(directory, name)
        else:
            make_tiny_model(directory, **FAMILIES.get(name, {"architecture": name}))
        found[name] = Written(directory, json.loads((directory / "config.json").read_bytes()))
    return found


@dataclass(frozen=True)
class Drawn:
    """Random JSON values, and members to put them in."""

    rng: random.Random

    def value(self, depth: int = 0) -> Any:
        kind = self.rng.randrange(8 if depth < 3 else 5)
        if kind == 0:
            return self.rng.choice((None, True, False))
        if kind in (1, 2):
            return self.rng.choice((0, 1, 2, 3, 4, 8, 16, 64, 384, -1, 2**31, 2**63, 10**30))
        if kind == 3:
            return self.rng.choice((0.0, 0.5, -1.0, 1e-6, 1e4, 1e30, 1e308, float("nan"), float("inf")))
        if kind == 4:
            return self.rng.choice(WORDS)
        if kind == 5:
            return [self.value(depth + 1) for _ in range(self.rng.randrange(6))]
        names = ROPE if kind == 6 else (*STRAY, "0", "1")
        return {self.rng.choice(names): self.value(depth + 1) for _ in range(self.rng.randrange(5))}

    def field(self) -> Value:
        """A field of a GGUF file: a number, a truth, a text, or a list."""
        value = self.value(3)
        if isinstance(value, dict | None):
            numbers = [self.rng.choice((0, 1, 2, 3, 4, 64)) for _ in range(self.rng.randrange(8))]
            return np.array(numbers, self.rng.choice((np.int32, np.bool_, np.float32)))
        found: Value = list(map(str, value)) if isinstance(value, list) else value
        return found

    def change(self, document: dict[str, Any]) -> None:
        """Change one to three members of a document, or of objects and lists in it."""
        for _ in range(self.rng.randint(1, 3)):
            name = self.rng.choice((*document, *STRAY))
            held = document.get(name)
            if isinstance(held, dict) and self.rng.random() < 0.6:
                self.change(held)
            elif isinstance(held, list) and held and self.rng.random() < 0.5:
                held[self.rng.randrange(len(held))] = self.value(1)
            elif self.rng.random() < 0.1:
                document.pop(name, None)
            else:
                document[name] = self.value()


@pytest.mark.slow
@settings(max_examples=examples(500), deadline=None)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(MODELS))
def test_random_members_are_read_or_refused(seed: int, name: str, written: dict[str, Written]) -> None:
    drawn, model = Drawn(random.Random(seed)), written[name]
    document = json.loads(json.dumps(model.document))
    part = document["text_config"] if "text_config" in document and drawn.rng.random() < 0.7 else document
    drawn.change(part)
    (model.directory / "config.json").write_text(json.dumps(document))
    for read in (check_headers, read_whole):
        with suppress(TargetError):
            read(model.directory)


def read_whole(directory: Path) -> None:
    config = read_config(directory)
    rope_parameters(directory)
    served = bounded(config, None)
    cache_blocks(served, usual_cache(served, "float32"), tokens=None, size=None)
    check_weights(open_weights(directory), config)


CONVERTED = (
    "llama",
    "gpt_oss",
    "gemma4, shared keys and inputs of layers",
    "granite_hybrid, experts",
    "qwen3_5",
    "lfm2",
)
NAMES = (
    "rope.scaling.type", "rope.scaling.factor", "rope.dimension_count", "rope.freq_base_swa", "expert_count",
    "expert_gating_func", "nextn_predict_layers", "full_attention_interval", "attention.recurrent_layers",
    "attention.sliding_window", "attention.sliding_window_pattern", "attention.shared_kv_layers", "attention.scale",
    "rope.scaling.finetuned", "block_count", "feed_forward_length", "attention.head_count_kv", "vocab_size",
)  # fmt: skip


@dataclass(frozen=True)
class Converted:
    """A GGUF file, and its header."""

    path: Path
    head: GgufHeader
    data: Bytes


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Converted]:
    found = {}
    for name in CONVERTED:
        folder = tmp_path_factory.mktemp("converted")
        directory = make_tiny_model(folder / "d", **FAMILIES.get(name, {"architecture": name}))
        path = convert(directory, folder / "m.gguf")
        found[name] = Converted(path, read_gguf_header(path, path.read_bytes()), map_file(path))
    return found


def field_of(value: Value) -> GgufField:
    return GgufField(lambda: value, memoryview(b""))


@pytest.mark.slow
@settings(max_examples=examples(500), deadline=None)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(CONVERTED))
def test_random_fields_of_a_gguf_file_are_read_or_refused(
    seed: int, name: str, converted: dict[str, Converted]
) -> None:
    drawn, file = Drawn(random.Random(seed)), converted[name]
    fields = {key: field_of(value) for key, value in file.head.metadata.items()}
    architecture = fields["general.architecture"].value
    for _ in range(drawn.rng.randint(1, 3)):
        own = [key for key in fields if key.startswith(f"{architecture}.")]
        key = drawn.rng.choice((*own, *(f"{architecture}.{name}" for name in NAMES)))
        fields[key] = field_of(drawn.field())
    with suppress(TargetError):
        header = GgufHeader(GgufMetadata(file.path, fields), file.head.tensors)
        changed = GgufFile([file.path], header, [file.data])
        config = read_gguf(changed)
        served = bounded(config, None)
        cache_blocks(served, usual_cache(served, "int8"), tokens=None, size=None)
        check_weights(changed, config)


def edited(model: Written, **changes: Any) -> Path:
    (model.directory / "config.json").write_text(json.dumps({**model.document, **changes}))
    return model.directory


BY_KIND = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e4},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
}


@pytest.mark.parametrize("rope", [BY_KIND, {"sliding_attention": BY_KIND["sliding_attention"]}, {"full_attention": 3}])
@pytest.mark.parametrize("name", ["llama", "exaone4", "gpt_oss", "llama4"])
def test_a_rotation_for_each_kind_of_layer_is_refused_in_other_families(
    rope: dict[str, Any], name: str, written: dict[str, Written]
) -> None:
    with pytest.raises(UnsupportedArchitecture if rope is BY_KIND else TargetError, match="rope_parameters"):
        read_config(edited(written[name], rope_parameters=rope))


IGNORED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"architecture": "mistral", "sliding_window": 40}, {"use_sliding_window": False}),
    ({"architecture": "mistral", "sliding_window": 40}, {"layer_types": ["full_attention"] * 2}),
    (FAMILIES["mixtral"], {"norm_topk_prob": False}),
    (FAMILIES["mixtral"], {"moe_intermediate_size": 8, "mlp_only_layers": [0], "decoder_sparse_step": 2}),
    (FAMILIES["gpt_oss"], {"num_dense_layers": 1, "moe_layers": [0], "enable_moe_block": False}),
    (FAMILIES["llama4"], {"num_experts": 2, "moe_intermediate_size": 8}),
    (
        {"architecture": "llama"},
        {"shared_intermediate_size": 8, "intermediate_size_mlp": 8, "layer_types": ["full_attention"] * 2},
    ),
    ({"architecture": "qwen3"}, {"block_auto_adjust_ff_dim": True}),
]
"""Models, and members that other families have, which transformers ignores in these."""


@pytest.mark.parametrize(("members", "stray"), IGNORED)
def test_a_member_that_a_family_does_not_have_changes_nothing(
    members: dict[str, Any], stray: dict[str, Any], tmp_path: Path
) -> None:
    directory = make_tiny_model(tmp_path, **members)
    expected = read_config(directory)
    document = json.loads((directory / "config.json").read_bytes())
    assert document.keys().isdisjoint(stray)
    (directory / "config.json").write_text(json.dumps(document | stray))
    assert read_config(directory) == expected
