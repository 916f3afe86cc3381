"""The configuration of a GGUF file: what config.json of the same model says, or why it is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.generation.target.config.config import read_config, rope_parameters
from services.generation.target.errors import ConfigInvalid, TargetError, UnsupportedArchitecture
from services.generation.target.weights import check_weights, open_weights
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_model import make_tiny_model

YARN = {
    "rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 16.0,
    "beta_slow": 2.0,
}  # fmt: skip
YARN_FIELDS = {
    "rope.scaling.type": "yarn", "rope.freq_base": 5e5, "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 128, "rope.scaling.yarn_beta_fast": 16.0,
    "rope.scaling.yarn_beta_slow": 2.0,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}


OF_GPT_OSS = ["<|end|>", "<|return|>", "<|call|>"]


def setting(architecture: str = "llama", **fields: Any) -> Callable[[dict[str, Any]], None]:
    """Sets metadata; a None takes the field away. Dots are written as two underscores."""

    def change(metadata: dict[str, Any]) -> None:
        for name, value in fields.items():
            key = name.replace("__", ".")
            key = key if key.startswith(("general.", "tokenizer.")) else f"{architecture}.{key}"
            metadata[key] = value
            if value is None:
                del metadata[key]

    return change


def spelled(fields: dict[str, Any]) -> dict[str, Any]:
    return {name.replace(".", "__"): value for name, value in fields.items()}


@pytest.mark.parametrize(
    ("architecture", "fields", "config"),
    [
        ("llama", {}, {}),
        ("llama", {"rope__freq_base": None}, {}),
        ("llama", {"attention__sliding_window": 100}, {"architecture": "mistral", "sliding_window": 100}),
        ("llama", {"rope__freq_base": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
        ("llama", {"rope__scaling__type": "linear", "rope__scaling__factor": 2.5}, {"rope_parameters": LINEAR}),
        ("llama", {"rope__scaling__factor": 2.5}, {"rope_parameters": LINEAR}),
        ("llama", {"rope__scale_linear": 2.5}, {"rope_parameters": LINEAR}),
        ("llama", {"rope__scaling__type": "none", "rope__scaling__factor": 2.5}, {}),
        ("llama", spelled(YARN_FIELDS), {"rope_parameters": YARN}),
        ("llama", {"vocab_size": None}, {}),
        ("llama", {"attention__key_length": 64, "attention__value_length": 64, "rope__dimension_count": 64}, {}),
        ("llama", {"expert_count": 0, "attention__causal": True, "logit_scale": 1.0}, {}),
        ("qwen2", {}, {}),
        ("qwen3", {}, {}),
    ],
)
def test_it_is_what_config_json_of_the_same_model_says(
    tmp_path: Path, architecture: str, fields: dict[str, Any], config: dict[str, Any]
) -> None:
    path = make_tiny_gguf(
        tmp_path / "m.gguf", architecture=architecture, change_metadata=setting(architecture, **fields)
    )
    members = {"architecture": architecture, "layers": 1, "hidden": 256, "rms_norm_eps": 1e-5} | config
    directory = make_tiny_model(tmp_path / "directory", **members)
    read = read_config(path)
    assert read == read_config(directory)
    assert rope_parameters(path) == rope_parameters(directory)
    check_weights(open_weights(path), read)


def test_rotary_frequencies_are_divided_by_factors_where_the_file_has_them(tmp_path: Path) -> None:
    factors = 2.0 ** (np.arange(32, dtype=np.float32) // 8)  # powers of two: the division does not round
    plain = read_config(make_tiny_gguf(tmp_path / "plain.gguf"))
    path = make_tiny_gguf(tmp_path / "m.gguf", change_tensors=lambda t: t.update({"rope_freqs.weight": (0, factors)}))
    read = read_config(path)
    assert replace(read, rotations=plain.rotations) == plain
    expected = np.array(plain.rotations[0].inverse_frequencies, np.float32) / factors
    assert read.rotations[0].inverse_frequencies == tuple(expected.tolist())
    check_weights(open_weights(path), read)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (1,)),
        ({"tokenizer__ggml__eot_token_id": 5, "tokenizer__ggml__eom_token_id": 3}, (1, 3, 5)),
        ({"tokenizer__ggml__eos_token_id": 2**32 - 1}, ()),
        ({"tokenizer__ggml__eos_token_id": None}, ()),
    ],
)
def test_a_sequence_ends_with_the_tokens_that_the_file_names(
    tmp_path: Path, fields: dict[str, Any], expected: tuple[int, ...]
) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf", change_metadata=setting(**fields, tokenizer__ggml__token_type=[1] * 384))
    assert read_config(path).eos_token_ids == expected


@pytest.mark.parametrize(
    ("names", "kind", "ends"),
    [
        (["<|end|>"], 3, (1, 7)),
        (["<|end|>", "<|return|>"], 3, (1, 7, 8)),
        (OF_GPT_OSS, 3, (1, 8, 9)),  # whose answers are several messages
        (["<eos>", "<turn|>", "<|tool_response>"], 4, (1, 7, 8, 9)),
        (["<turn|>"], 1, (1,)),
    ],
)
def test_names_tell_whether_a_token_ends_a_sequence_or_a_message(
    tmp_path: Path, names: list[str], kind: int, ends: tuple[int, ...]
) -> None:
    def change(metadata: dict[str, Any]) -> None:
        metadata["tokenizer.ggml.tokens"][1] = "<other>"
        metadata["tokenizer.ggml.tokens"][7 : 7 + len(names)] = names
        metadata["tokenizer.ggml.token_type"][7 : 7 + len(names)] = [kind] * len(names)
        metadata["tokenizer.ggml.eot_token_id"] = 7 if names == OF_GPT_OSS else 1

    assert read_config(make_tiny_gguf(tmp_path / "tiny.gguf", change_metadata=change)).eos_token_ids == ends


def test_special_tokens_of_known_names_end_a_sequence(tmp_path: Path) -> None:
    def change(metadata: dict[str, Any]) -> None:
        metadata["tokenizer.ggml.tokens"][7:9] = ["<|endoftext|>", "<|eot_id|>"]
        metadata["tokenizer.ggml.token_type"][7] = 3  # the other is ordinary text

    assert read_config(make_tiny_gguf(tmp_path / "m.gguf", change_metadata=change)).eos_token_ids == (1, 7)


FAULTS: dict[str, tuple[dict[str, Any], type[TargetError], str]] = {
    "no context": ({"context_length": None}, ConfigInvalid, r"llama\.context_length is missing"),
    "a word for a number": ({"block_count": "two"}, ConfigInvalid, r"llama\.block_count is 'two'; expected a whole"),
    "no layers": ({"block_count": 0}, ConfigInvalid, "block_count is 0; expected a whole number of at least 1"),
    "more layers than tensors": ({"block_count": 2**32 - 1}, ConfigInvalid, "but there are 12 tensors"),
    "heads of every layer": ({"attention__head_count": [4, 4]}, ConfigInvalid, "head_count is a list of 2; expected"),
    "heads not shared evenly": ({"attention__head_count_kv": 3}, ConfigInvalid, "not a multiple"),
    "another width": ({"embedding_length": 512}, ConfigInvalid, r"q_proj\.weight has the shape \[256, 256\]"),
    "wider heads": ({"attention__key_length": 128}, ConfigInvalid, r"the metadata makes it \[512, 256\]"),
    "odd heads": ({"attention__head_count": 256}, ConfigInvalid, "head_dim 1 is odd"),
    "no epsilon": ({"attention__layer_norm_rms_epsilon": None}, ConfigInvalid, "layer_norm_rms_epsilon is missing"),
    "an endless epsilon": ({"attention__layer_norm_rms_epsilon": float("inf")}, ConfigInvalid, "is inf"),
    "more tokens than embeddings": (
        {"vocab_size": 300}, ConfigInvalid, "tokens is a list of 384; expected at most the 300",
    ),
    "no rotation": ({"rope__freq_base": 1.0}, ConfigInvalid, r"freq_base is 1\.0; expected a number above 1"),
    "a factor below one": (
        {"rope__scaling__factor": 0.5}, ConfigInvalid, r"factor is 0\.5; expected a number of at least 1",
    ),
    "another architecture": (
        {"general__architecture": "falcon"}, UnsupportedArchitecture, "'falcon' is not supported; supported: llama",
    ),
    "experts": ({"expert_count": 8}, ConfigInvalid, r"llama\.expert_used_count is missing"),
    "a partial rotation": ({"rope__dimension_count": 32}, UnsupportedArchitecture, "rope.dimension_count is 32"),
    "narrow values": ({"attention__value_length": 32}, UnsupportedArchitecture, "is 32; supported: the 64"),
    "an unknown rotation": (
        {"rope__scaling__type": "longrope"}, UnsupportedArchitecture, "'longrope'; supported: none, linear, yarn",
    ),
    "another attention factor": (
        {"rope__scaling__attn_factor": 0.5}, UnsupportedArchitecture, r"attn_factor is 0\.5, which is not supported",
    ),
    "a list for an option": ({"attention__scale": [1, 2]}, UnsupportedArchitecture, "attention.scale is"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_cannot_be_served_says_why(tmp_path: Path, fault: str) -> None:
    fields, kind, words = FAULTS[fault]
    fields = dict(fields)
    architecture = fields.pop("general__architecture", "llama")
    path = make_tiny_gguf(tmp_path / "m.gguf", change_metadata=setting(**fields))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\x05\x00\x00\x00\x00\x00\x00\x00llama", _text(architecture), 1))
    with pytest.raises(kind, match=words) as refused:
        read_config(path)
    assert str(path) in str(refused.value)


def _text(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()
