"""The configuration of a GGUF file: equal to the same model's config.json, or refused with a reason."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.generation.target.config.config import read_config, rope_parameters
from services.generation.target.errors import ConfigInvalid, TargetError, UnsupportedArchitecture, WeightsInvalid
from services.generation.target.weights import check_headers, check_weights, checked_weights, open_weights
from tests.fakes.converted_gguf import convert
from tests.fakes.tiny_families import FAMILIES
from tests.fakes.tiny_gguf import make_tiny_gguf, write_gguf
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
    ("names", "kinds", "ends"),
    [
        (["<|end|>"], [3], (1, 7)),
        (["<|end|>", "<|return|>"], [3, 3], (1, 7, 8)),
        (OF_GPT_OSS, [3, 3, 3], (1, 8, 9)),  # whose answers are several messages
        (["<eos>", "<turn|>", "<|tool_response>"], [4, 4, 4], (1, 7, 8, 9)),
        (["<|endoftext|>", "<|eot_id|>"], [3, 1], (1, 7)),  # the second is ordinary text
        (["<turn|>"], [1], (1,)),
    ],
)
def test_names_tell_whether_a_token_ends_a_sequence_or_a_message(
    tmp_path: Path, names: list[str], kinds: list[int], ends: tuple[int, ...]
) -> None:
    def change(metadata: dict[str, Any]) -> None:
        metadata["tokenizer.ggml.tokens"][1] = "<other>"
        metadata["tokenizer.ggml.tokens"][7 : 7 + len(names)] = names
        metadata["tokenizer.ggml.token_type"][7 : 7 + len(names)] = kinds
        metadata["tokenizer.ggml.eot_token_id"] = 7 if names == OF_GPT_OSS else 1

    assert read_config(make_tiny_gguf(tmp_path / "tiny.gguf", change_metadata=change)).eos_token_ids == ends


FAULTS: dict[str, tuple[dict[str, Any], type[TargetError], str]] = {
    "no context": ({"context_length": None}, ConfigInvalid, r"llama\.context_length is missing"),
    "a word for a number": ({"block_count": "two"}, ConfigInvalid, r"llama\.block_count is 'two'; expected a whole"),
    "no layers": ({"block_count": 0}, ConfigInvalid, "block_count is 0; expected a whole number of at least 1"),
    "more layers than tensors": ({"block_count": 2**32 - 1}, ConfigInvalid, "but there are 12 tensors"),
    "words for heads": ({"attention__head_count": ["4"]}, ConfigInvalid, "head_count is a list of 1; expected"),
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
        {"rope__scaling__type": "su"}, UnsupportedArchitecture, "'su'; supported: none, linear, yarn",
    ),
    "LongRoPE without its divisors": (
        {"rope__scaling__type": "longrope"}, WeightsInvalid, r"rope\.scaling\.type is longrope.*rope_factors_long",
    ),
    "a list for a kind": ({"rope__scaling__type": [1, 2]}, ConfigInvalid, r"type is a list of 2; expected text"),
    "another scale of yarn": ({"rope__scaling__mscale": 0.5}, UnsupportedArchitecture, r"scaling\.mscale is 0\.5"),
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


@pytest.mark.parametrize("name", ["v.patch_embd.weight", "mm.0.weight", "a.blk.0.ffn_up.weight", "mtp.fc.weight"])
def test_a_file_with_more_than_the_model_for_text_is_refused_by_the_tensor(name: str, tmp_path: Path) -> None:
    """As Ollama's converters write it; such files lack the epsilon too, and the parts are the cause."""
    path = make_tiny_gguf(
        tmp_path / "m.gguf", change_metadata=setting(attention__layer_norm_rms_epsilon=None),
        change_tensors=lambda tensors: tensors.update({name: (0, np.zeros((2, 2), np.float32))}),
    )  # fmt: skip
    for read in (read_config, check_headers):
        with pytest.raises(UnsupportedArchitecture, match=re.escape(name)):
            read(path)


@pytest.mark.parametrize(("architecture", "named"), [("clip", "mmproj"), ("gptoss", "Ollama")])
def test_an_architecture_that_is_a_form_of_another_says_so(architecture: str, named: str, tmp_path: Path) -> None:
    some = {"v.patch_embd.weight": (0, np.zeros((2, 2), np.float32))}
    write_gguf(tmp_path / "m.gguf", architecture, {}, some)
    for read in (read_config, check_headers):
        with pytest.raises(UnsupportedArchitecture, match=f"'{architecture}' is not supported.*{named}"):
            read(tmp_path / "m.gguf")


FACTORS = {
    "LongRoPE's short divisors alone": {"rope_factors_short.weight": 32},
    "LongRoPE's long divisors alone": {"rope_factors_long.weight": 32},
    "divisors and LongRoPE's": dict.fromkeys(
        ("rope_factors_short.weight", "rope_factors_long.weight", "rope_freqs.weight"), 32
    ),
    "divisors of another number": {"rope_freqs.weight": 16},
}


@pytest.mark.parametrize("case", FACTORS)
def test_divisors_that_would_not_be_read_are_refused(case: str, tmp_path: Path) -> None:
    added = {name: (0, np.ones(size, np.float32)) for name, size in FACTORS[case].items()}
    path = make_tiny_gguf(tmp_path / "m.gguf", change_tensors=lambda tensors: tensors.update(added))
    with pytest.raises(TargetError, match=r"rope_(freqs|factors_short|factors_long)\.weight"):
        read_config(path)


def test_divisors_of_layers_that_turn_by_their_kind_are_refused(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "d", **FAMILIES["gemma3"])
    added = {"rope_freqs.weight": (0, np.full(8, 2.0, np.float32))}
    path = convert(directory, tmp_path / "m.gguf", change_tensors=lambda tensors: tensors.update(added))
    with pytest.raises(UnsupportedArchitecture, match=r"rope_freqs\.weight"):
        read_config(path)


OLLAMA: dict[str, tuple[str, dict[str, str | None]]] = {
    "both bases": (
        "gemma3", {"rope.freq_base": "rope.global.freq_base", "rope.freq_base_swa": "rope.local.freq_base"},
    ),
    "the base of windows": ("gemma3", {"rope.freq_base_swa": "rope.local.freq_base"}),
    "no base": ("gemma3", {"rope.freq_base": None, "rope.freq_base_swa": None}),
    "yarn of Ministral 3": (
        "mistral3",
        {
            "rope.scaling.yarn_beta_fast": "rope.scaling.beta_fast",
            "rope.scaling.yarn_beta_slow": "rope.scaling.beta_slow",
            "rope.scaling.yarn_log_multiplier": "rope.scaling.mscale_all_dim",
            "attention.temperature_scale": "rope.scaling_beta",
        },
    ),
    "shares of experts": ("qwen3moe", {"expert_weights_norm": "norm_top_k_prob"}),
}  # fmt: skip
"""The architecture, and its fields' names in files of Ollama's converters; None for a missing field."""


@pytest.mark.parametrize("case", OLLAMA)
def test_a_file_of_ollama_is_read_as_that_of_llama_cpp(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    architecture, names = OLLAMA[case]
    family = {"mistral3": "ministral3", "qwen3moe": "qwen3_moe"}.get(architecture, architecture)
    directory = make_tiny_model(tmp_path / "d", **FAMILIES[family])

    def more(fields: dict[str, Any]) -> None:
        if "yarn" in case:
            fields |= {f"{architecture}.rope.scaling.yarn_beta_fast": 16.0}
            fields |= {f"{architecture}.rope.scaling.yarn_beta_slow": 2.0}
        if names.get("rope.freq_base_swa"):
            fields |= {"gemma3.rope.freq_base_swa": 5e3}
        if "experts" in case:
            fields |= {f"{architecture}.expert_weights_norm": False}

    def renamed(fields: dict[str, Any]) -> None:
        more(fields)
        for ours, theirs in names.items():
            value = fields.pop(f"{architecture}.{ours}", None)
            fields |= {f"{architecture}.{theirs}": value} if theirs else {}

    usual = convert(directory, tmp_path / "usual.gguf", change_metadata=more)
    path = convert(directory, tmp_path / "ollama.gguf", change_metadata=renamed)
    assert read_config(path) == read_config(usual)
    assert caplog.records == []


def test_metadata_that_is_not_read_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ignored = {"rope.turns": 3, "attention.other_scale": 0.5, "rope.scaling.yarn_beta_fast": 8.0}
    harmless = {"attention.head_dim": 64, "rope.dimension_sections": [8, 8, 8, 0], "unrelated": 1}
    path = make_tiny_gguf(tmp_path / "m.gguf", change_metadata=setting(**spelled(ignored | harmless)))
    for _ in range(2):
        read_config(path)
    (record,) = caplog.records
    named = record.args[1] if isinstance(record.args, tuple) else ""
    assert (record.levelname, str(named).split(", ")) == ("WARNING", sorted(f"llama.{name}" for name in ignored))


@pytest.mark.parametrize("layers", [1, 3])
def test_a_field_for_each_layer_is_one_where_all_are_alike(layers: int, tmp_path: Path) -> None:
    each = {"attention.head_count": 4, "attention.head_count_kv": 2, "feed_forward_length": 512}
    lists = setting(**spelled({name: [value] * layers for name, value in each.items()}))
    path = make_tiny_gguf(tmp_path / "m.gguf", layers=layers, change_metadata=lists)
    plain = make_tiny_gguf(tmp_path / "plain.gguf", layers=layers)
    assert read_config(path) == read_config(plain)
    checked_weights(path, read_config(path)).tensor("model.layers.0.self_attn.q_proj.weight")
    for name, value in each.items() if layers > 1 else ():
        uneven = setting(**spelled({name: [value] * (layers - 1) + [2 * value]}))
        with pytest.raises(ConfigInvalid, match=re.escape(name)):
            read_config(make_tiny_gguf(tmp_path / "n.gguf", layers=layers, change_metadata=uneven))


def test_key_heads_of_layers_that_fold_a_state_may_be_none(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "d", **FAMILIES["qwen3_5"])
    expected = read_config(convert(directory, tmp_path / "m.gguf"))
    for each, kind in (([0, 0, 0, 2], None), ([0, 0, 0, 0], ConfigInvalid)):
        fields = {"qwen35.attention.head_count_kv": each}
        path = convert(directory, tmp_path / "n.gguf", change_metadata=lambda found, f=fields: found.update(f))
        if kind is None:
            assert read_config(path) == expected
        else:
            with pytest.raises(kind, match="head_count_kv"):
                read_config(path)


def _text(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()
