"""Families other than Llama's closest relatives: a GGUF file gives the directory's bits, rows do not depend on passes,
refusals name the field."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from services.generation.target.architectures import ARCHITECTURES, MISSING
from services.generation.target.blocks import BLOCK
from services.generation.target.config.config import block_bytes, read_config, rope_parameters
from services.generation.target.cpu import load_target
from services.generation.target.errors import TargetError
from services.generation.target.probe import probe
from services.generation.target.target import Target
from services.generation.target.weights import check_weights, open_weights
from tests.examples import examples, grid
from tests.fakes.converted_gguf import convert
from tests.fakes.rows import chunk_rows, tree_rows
from tests.fakes.tiny_families import FAMILIES, LONGROPE, WITHOUT_GGUF, draw_vectors
from tests.fakes.tiny_gguf import write_gguf
from tests.fakes.tiny_head import make_tiny_adapter
from tests.fakes.tiny_model import TOKENS, logits_of, make_tiny_model, target_of
from tests.numerics.arithmetic import assert_same_bits
from tests.unit.generation.engine.test_identity import check_identity


@pytest.fixture(scope="module")
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_vectors(make_tiny_model(tmp_path_factory.mktemp("model"), **FAMILIES[request.param]))


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - WITHOUT_GGUF))
def test_a_gguf_file_gives_the_bits_of_the_directory(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = draw_vectors(make_tiny_model(tmp_path / "directory", **FAMILIES[family]))
    path = convert(directory, tmp_path / "tiny.gguf")
    described, read = read_config(directory), read_config(path)
    check_weights(open_weights(path), read)
    assert [record for record in caplog.records if record.name.startswith("services.")] == []
    rule = replace(described.rule, converted=True) if described.rule else None
    assert replace(described, rule=rule, **{name: getattr(read, name) for name in _FORM}) == read
    widths = [len(TOKENS)]
    assert_same_bits(logits_of(target_of(path), widths), logits_of(target_of(directory), widths))


_FORM = ("norm_offset",)
"""Allowed differences: the same values in another form."""


@pytest.mark.parametrize(
    ("directory", "cache_dtype"),
    grid(3, list(FAMILIES), ["float32", "bfloat16", "int8"]),
    indirect=["directory"],
    scope="module",
)
def test_a_row_does_not_depend_on_other_rows(directory: Path, cache_dtype: str) -> None:
    target = target_of(directory, cache_dtype=cache_dtype)
    alone = logits_of(target, [1] * len(TOKENS))
    for widths in ([len(TOKENS)], [3, 20, 1, 66], [64, 26]):
        assert_same_bits(logits_of(target, widths), alone)


@pytest.mark.parametrize(
    ("directory", "cache_dtype"),
    grid(3, list(FAMILIES), ["float32", "bfloat16", "int8"]),
    indirect=["directory"],
    scope="module",
)
def test_what_a_block_holds_is_worth_the_same_in_another_target(directory: Path, cache_dtype: str) -> None:
    first, second = (target_of(directory, cache_dtype=cache_dtype) for _ in range(2))
    expected, table = logits_of(first), list[int]()
    second.blocks.extend(table, len(TOKENS))
    rest = TOKENS[BLOCK:]
    second.forward(chunk_rows(table, 0, rest + TOKENS[: BLOCK - len(rest)]))  # leaves other lines and a state of theirs
    second.fill_block(table[0], content := first.block_content(0))
    assert len(content) == block_bytes(first.config, cache_dtype)
    assert_same_bits(second.forward(tree_rows(table, BLOCK, rest)).logits, expected[BLOCK:])


@pytest.mark.slow
@pytest.mark.parametrize("directory", [name for name in FAMILIES if "," not in name], indirect=True, scope="module")
def test_no_method_and_no_schedule_changes_a_token(directory: Path) -> None:
    targets = [target_of(directory, cache_dtype=dtype) for dtype in ("float32", "int8")]
    for seed in range(examples(8)):
        target = targets[seed % 2]
        check_identity(target, target, seed)


@pytest.mark.slow
@pytest.mark.parametrize("directory", [name for name in FAMILIES if "," not in name], indirect=True, scope="module")
def test_the_probe_passes(directory: Path) -> None:
    assert probe(load_target(directory, cache_tokens=2048)).passed


FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("smollm3", {"no_rope_layers": [1, 1]}),
    ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.6}}),
    ("phi3, longrope beyond", {"rope_parameters": LONGROPE | {"long_factor": [0.0] * 6}}),
    ("phi3, longrope beyond", {"original_max_position_embeddings": 1}),
    ("mixtral", {"num_experts_per_tok": 5}),
    ("mixtral", {"num_local_experts": 10**12}),
    ("mixtral", {"num_local_experts": 4096, "num_hidden_layers": 65}),
    ("gemma3", {"use_bidirectional_attention": True}),
    ("gemma2", {"final_logit_softcapping": -30.0}),
    ("granite", {"logits_scaling": 0.0}),
    ("lfm2_moe", {"routed_scaling_factor": 0.0}),
    ("gemma3", {"query_pre_attn_scalar": 0}),
    ("gemma2", {"hidden_activation": "gelu"}),
    ("lfm2", {"layer_types": ["conv", "full_attention", "linear_attention"]}),
    ("gemma3", {"layer_types": ["conv"] * 7}),
    ("lfm2", {"layer_types": ["conv", "full_attention"]}),
    ("smollm3", {"layer_types": ["chunked_attention"] * 5}),
    ("smollm3", {"layer_types": ["sliding_attention"] * 5, "sliding_window": 40, "use_sliding_window": False}),
    ("smollm3", {"layer_types": ["sliding_attention"] * 5, "sliding_window": None, "use_sliding_window": True}),
    ("gemma2", {"sliding_window": None}),
    ("llama4", {"layer_types": ["sliding_attention"] * 4}),
    ("llama4", {"attention_chunk_size": None}),
    ("qwen3_5", {"linear_key_head_dim": 20}),
    ("qwen3_5", {"linear_value_head_dim": 528}),
    ("qwen3_5", {"linear_num_value_heads": 3}),
    ("qwen3_5", {"layer_types": ["linear_attention", "conv", "linear_attention", "full_attention"]}),
    ("granite_hybrid", {"mamba_n_groups": 3}),
    ("granite_hybrid", {"mamba_d_state": 20}),
    ("granite_hybrid", {"time_step_limit": [0.0, 0.1]}),
    ("granite_hybrid", {"mamba_proj_bias": True}),
    ("qwen3_5", {"attn_output_gate": False}),
    ("qwen3_next", {"output_gate_type": "sigmoid"}),
    ("lfm2", {"conv_bias": True}),
    ("lfm2", {"conv_L_cache": 17}),
    ("phi3", {"hidden_act": "gelu"}),
    ("gpt_oss", {"quantization_config": {"quant_method": "fp8"}}),
]


@pytest.mark.parametrize(("family", "change"), FAULTS)
def test_what_cannot_be_served_is_named(family: str, change: dict[str, Any], tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path, **FAMILIES[family])
    document = json.loads((directory / "config.json").read_bytes())
    (directory / "config.json").write_text(json.dumps(document | change))
    names = {*change, *change.get("rope_parameters", ())}
    with pytest.raises(TargetError, match="|".join(names)):
        read_config(directory)


@pytest.mark.parametrize("family", ["llama", "gemma3", "lfm2"])
def test_a_model_type_stands_for_an_architecture_that_is_not_named(family: str, tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path, **FAMILIES.get(family, {"architecture": family}))
    document = json.loads((directory / "config.json").read_bytes())
    expected = read_config(directory)
    for empty in ({}, {"architectures": None}, {"architectures": []}):
        others = {name: value for name, value in document.items() if name != "architectures"}
        (directory / "config.json").write_text(json.dumps(others | empty))
        assert read_config(directory) == expected
        check_weights(open_weights(directory), expected)
    (directory / "config.json").write_text(json.dumps({"model_type": "other"}))
    with pytest.raises(TargetError):
        read_config(directory)


def test_the_missing_parts_of_an_architecture_are_named(tmp_path: Path) -> None:
    for named in ({"architectures": ["FalconH1ForCausalLM"]}, {"model_type": "glm4"}):
        (tmp_path / "config.json").write_text(json.dumps(named))
        with pytest.raises(TargetError):
            read_config(tmp_path)
    assert MISSING.keys().isdisjoint(ARCHITECTURES)


def test_experts_that_are_not_those_of_the_metadata_are_refused(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "directory", **FAMILIES["mixtral"])
    config = read_config(convert(directory, tmp_path / "m.gguf"))
    assert config.experts is not None
    fewer = replace(config, experts=replace(config.experts, count=3))
    with pytest.raises(TargetError, match=r"experts\.3"):
        check_weights(open_weights(tmp_path / "m.gguf"), fewer)


def test_gate_and_up_in_one_tensor_are_halves(tmp_path: Path) -> None:
    tensors = {"blk.0.ffn_gate_up_exps.weight": (0, np.zeros((2, 3, 1), np.float32))}
    write_gguf(tmp_path / "m.gguf", "gemma4", {}, tensors)
    with pytest.raises(TargetError, match=r"gate_up_proj\.weight"):
        open_weights(tmp_path / "m.gguf")


def test_experts_may_lie_in_one_tensor(tmp_path: Path) -> None:
    """As Qwen3.5 is published; transformers writes each by itself."""
    directory = draw_vectors(make_tiny_model(tmp_path, **FAMILIES["qwen3_5_moe"]))
    expected, tensors = logits_of(target_of(directory)), load_file(directory / "model.safetensors")
    for number in range(4):
        experts = f"model.layers.{number}.mlp.experts"
        gate, up, down = (
            torch.stack([tensors.pop(f"{experts}.{n}.{module}_proj.weight") for n in range(8)])
            for module in ("gate", "up", "down")
        )
        tensors |= {f"{experts}.gate_up_proj": torch.cat([gate, up], dim=1), f"{experts}.down_proj": down}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    check_weights(open_weights(directory), read_config(directory))
    assert_same_bits(logits_of(target_of(directory)), expected)


def test_keys_that_no_layer_computes_may_be_there(tmp_path: Path) -> None:
    """The smaller Gemma 4 models are published with them, and llama.cpp's converter keeps them."""
    directory = draw_vectors(make_tiny_model(tmp_path / "d", **FAMILIES["gemma4, shared keys and inputs of layers"]))
    expected = logits_of(target_of(directory), [len(TOKENS)])
    published = load_file(directory / "model.safetensors")
    unread = {
        name.replace(f"layers.{number}", f"layers.{number + 2}"): tensor.clone()
        for name, tensor in published.items() for number in range(2)
        if f"layers.{number}.self_attn." in name and name.split(".")[-2] in ("k_proj", "v_proj", "k_norm")
    }  # fmt: skip
    assert unread.keys().isdisjoint(published)
    save_file(published | unread, directory / "model.safetensors", {"format": "pt"})
    for path in (directory, convert(directory, tmp_path / "m.gguf")):
        check_weights(open_weights(path), read_config(path))
        assert_same_bits(logits_of(target_of(path), [len(TOKENS)]), expected)


GGUF_FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("gemma4", {"attention.sliding_window_pattern": [True] * 3}, ""),
    ("gemma4", {"attention.sliding_window_pattern": [False]}, ""),
    ("gemma4", {"attention.sliding_window": 0}, ""),
    ("gemma4", {"feed_forward_length": [256, 128, 128]}, ""),
    ("gemma4", {"attention.head_count_kv": [2, 2]}, ""),
    ("gemma4", {"attention.value_length_swa": 8}, ""),
    ("gemma4", {"attention.shared_kv_layers": 9}, "num_kv_shared_layers"),
    ("gemma4", {"embedding_length_per_layer_input": 20}, r"embed_tokens_per_layer\.weight"),
    ("granite_hybrid", {"attention.head_count_kv": [0] * 4}, ""),
    ("granite_hybrid", {"ssm.time_step_rank": 3}, "inner_size"),
    ("granite_hybrid", {"ssm.group_count": 2}, r"mamba\.conv1d\.weight"),
    ("granite", {"rope.scaling.finetuned": False}, ""),
    ("lfm2", {"shortconv.l_cache": 4}, r"conv\.conv\.weight"),
    ("lfm2", {"attention.head_count_kv": [3, 3, 0]}, r"self_attn\.|layers\.0"),
    ("lfm2", {"attention.head_count_kv": [0, 0, 0]}, ""),
    ("lfm2", {"attention.head_count_kv": [0, 3, 1]}, ""),
    ("lfm2", {"shortconv.l_cache": 0}, ""),
    ("lfm2_moe", {"expert_gating_func": 1}, ""),
    ("lfm2_moe", {"leading_dense_block_count": 0}, r"layers\.0\.feed_forward\.expert"),
    ("qwen3_5", {"ssm.state_size": 32}, r"conv1d\.weight"),
    ("qwen3_5", {"ssm.state_size": 20}, "key_head_dim"),
    ("qwen3_5", {"ssm.inner_size": 130}, ""),
    ("qwen3_5", {"ssm.group_count": 3}, "heads"),
    ("qwen3_5", {"full_attention_interval": 9}, ""),
    ("qwen3_5", {"attention.recurrent_layers": [True, True, False, True]}, r"layers\.2\.self_attn|q_proj"),
    ("qwen3_5", {"attention.recurrent_layers": [True, False]}, ""),
    ("qwen3_5", {"nextn_predict_layers": 4}, ""),
]
"""Family, fields, and the name in the message, or nothing for the field's own."""


@pytest.mark.parametrize(("family", "change", "named"), GGUF_FAULTS)
def test_what_a_gguf_file_cannot_mean_is_named(family: str, change: dict[str, Any], named: str, tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "directory", **FAMILIES[family])
    name = {"qwen3_5": "qwen35"}.get(family, family.replace("_", ""))
    fields = {f"{name}.{option}": value for option, value in change.items()}
    path = convert(directory, tmp_path / "m.gguf", change_metadata=lambda metadata: metadata.update(fields))
    with pytest.raises(TargetError, match=named or next(iter(change))):
        check_weights(open_weights(path), read_config(path))


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    """llama.cpp's converter puts them after the others; without the field that counts them they are refused."""
    directory = draw_vectors(make_tiny_model(tmp_path / "d", **FAMILIES["qwen3_5"]))

    def further(tensors: dict[str, Any]) -> None:
        tensors |= {name.replace("blk.3.", "blk.4."): each for name, each in tensors.items() if "blk.3." in name}
        tensors["blk.4.nextn.eh_proj.weight"] = (0, np.zeros((64, 128), np.float32))

    path = convert(
        directory, tmp_path / "m.gguf", change_tensors=further,
        change_metadata=lambda fields: fields.update({"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}),
    )  # fmt: skip
    check_weights(open_weights(path), read_config(path))
    assert_same_bits(logits_of(target_of(path)), logits_of(target_of(directory)))
    path = convert(directory, tmp_path / "n.gguf", change_tensors=further)
    with pytest.raises(TargetError, match=r"nextn\.eh_proj\.weight"):
        check_weights(open_weights(path), read_config(path))


def test_a_state_that_older_files_have_in_one_tensor_is_refused(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "d", **FAMILIES["qwen3_next"])

    def joined(tensors: dict[str, Any]) -> None:
        qkv, gate = (tensors.pop(f"blk.0.attn_{name}.weight")[1] for name in ("qkv", "gate"))
        tensors["blk.0.ssm_in.weight"] = (0, np.concatenate([qkv, gate]))

    path = convert(directory, tmp_path / "m.gguf", change_tensors=joined)
    with pytest.raises(TargetError, match=r"layers\.0\.linear_attn\.in_proj_qkv\.weight"):
        check_weights(open_weights(path), read_config(path))


@pytest.mark.parametrize("divisors", [[2.0] * 12, [1e30] * 12, [1.0, 1e30, 1.0, *[1e30] * 9], [1.0] * 5])
def test_divisors_that_are_no_share_are_refused(divisors: list[float], tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "directory", **FAMILIES["gemma4"])
    path = convert(
        directory, tmp_path / "m.gguf",
        change_tensors=lambda tensors: tensors.update({"rope_freqs.weight": (0, np.array(divisors, np.float32))}),
    )  # fmt: skip
    with pytest.raises(TargetError, match=r"rope_freqs\.weight"):
        read_config(path)


def test_a_tensor_of_more_experts_than_any_model_has_is_refused(tmp_path: Path) -> None:
    tensors = {"blk.0.ffn_up_exps.weight": (0, np.zeros((4097, 1, 1), np.float32))}
    write_gguf(tmp_path / "m.gguf", "qwen3moe", {}, tensors)
    with pytest.raises(TargetError, match=r"up_proj\.weight"):
        open_weights(tmp_path / "m.gguf")


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
def test_adapters_of_states_are_the_same_for_a_gguf_file(family: str, tmp_path: Path) -> None:
    base = draw_vectors(make_tiny_model(tmp_path / "base", **FAMILIES[family]))
    modules = (
        ["in_proj_ba", "out_proj", "o_proj"] if family == "qwen3_next" else ["in_proj_qkv", "in_proj_z", "in_proj_b"]
    )
    adapter = make_tiny_adapter(tmp_path / "a", base, modules=(*modules, "out_proj"))
    config = json.loads((adapter / "adapter_config.json").read_bytes()) | {"base_model_name_or_path": None}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    paths = base, convert(base, tmp_path / "m.gguf")
    targets = [load_target(path, adapters={"a": adapter}, cache_tokens=2048) for path in paths]
    assert_same_bits(*(logits_of(target, adapter=0) for target in targets))


@pytest.mark.parametrize(
    ("family", "modules"),
    [
        *(
            pytest.param(family, ("q_proj", "k_proj", "v_proj", "up_proj"), marks=pytest.mark.slow)
            for family in ("gemma4", "gemma4, shared keys and inputs of layers")
        ),
        ("lfm2", ("in_proj", "out_proj", "q_proj", "w1", "w2")),
        ("qwen3_5", ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", "q_proj", "up_proj")),
        ("granite_hybrid", ("in_proj", "out_proj", "q_proj", "input_linear", "output_linear")),
    ],
)
def test_adapters_update_the_modules_that_a_layer_has(family: str, modules: tuple[str, ...], tmp_path: Path) -> None:
    base = draw_vectors(make_tiny_model(tmp_path / "base", **FAMILIES[family]))
    adapter = make_tiny_adapter(tmp_path / "a", base, modules=modules)
    assert probe(load_target(base, adapters={"a": adapter}, cache_tokens=2048)).passed


def test_longrope_is_served_within_the_length_trained_first_unless_more_is_asked(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path, **FAMILIES["phi3, longrope beyond"])
    rotation = read_config(directory).rotations[0]
    assert load_target(directory, cache_tokens=64).config.context_length == 64
    assert rotation.within(64) == rotation.inverse_frequencies != rotation.long == rotation.within(65)
    assert load_target(directory, context_length=300, cache_tokens=300).config.context_length == 300


def test_the_largest_gemma_in_gguf_scales_queries_by_all_of_a_hidden_state(tmp_path: Path) -> None:
    """As in llama.cpp, it is recognised by its number of layers."""
    members = {"architecture": "gemma2", "layers": 46, "hidden": 32, "tie_word_embeddings": True}
    scale = {"query_pre_attn_scalar": 8, "head_dim": 16}  # 32 / 4 heads
    directory = make_tiny_model(tmp_path / "directory", **members, **scale)
    assert read_config(convert(directory, tmp_path / "m.gguf")).query_scale == read_config(directory).query_scale


def test_a_head_takes_over_what_it_can_of_longrope(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path, **FAMILIES["phi3, longrope beyond"])
    assert rope_parameters(directory) == {"rope_type": "default", "rope_theta": 1e4}
    directory = make_tiny_model(tmp_path / "gemma", **FAMILIES["gemma3, linear"])
    assert rope_parameters(directory) == {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}


LENGTH = 150
MODELS: dict[str, dict[str, Any]] = {
    "llama, tied": {"architecture": "llama", "tie_word_embeddings": True},
    "llama, biased": {
        "architecture": "llama", "attention_bias": True, "mlp_bias": True,
    },
    "llama, a window that means nothing": {"architecture": "llama", "sliding_window": 40},
    "llama, rope linear": {
        "architecture": "llama",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    },
    "llama, rope llama3": {
        "architecture": "llama",
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        },
    },
    "llama, rope dynamic": {
        "architecture": "llama",
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    },
    "qwen2": {"architecture": "qwen2"},
    "qwen2, yarn, sliding": {
        "architecture": "qwen2", "use_sliding_window": True, "sliding_window": 70, "max_window_layers": 1,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128,
        },
    },
    "qwen3": {"architecture": "qwen3", "head_dim": 24},
    "mistral, sliding": {"architecture": "mistral", "sliding_window": 40},
    "mistral, odd sizes": {"architecture": "mistral", "hidden": 72, "heads": 6, "kv_heads": 3, "intermediate_size":
    101},
    "gpt_oss, bounds that are reached": FAMILIES["gpt_oss"] | {"swiglu_limit": 0.5, "swiglu_alpha": 3.0},
} | FAMILIES  # fmt: skip


@pytest.fixture(scope="module", params=MODELS, ids=list(MODELS))
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_vectors(make_tiny_model(tmp_path_factory.mktemp("model"), **MODELS[request.param]))


def logits_beside_others(target: Target, tokens: list[int]) -> np.ndarray:
    with target.blocks.lent(len(tokens)) as table:
        target.forward(chunk_rows(table, 0, tokens[:50], want_last=False))
        return target.forward(tree_rows(table, 50, tokens[50:])).logits


def transformers_logits(published: Path, tokens: list[int]) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(published, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0, 50:].numpy()


@pytest.mark.slow
def test_logits_are_those_of_transformers_up_to_rounding(published: Path) -> None:
    tokens = [(7 * i * i + 3 * i) % 384 for i in range(LENGTH)]
    config = read_config(published)
    found = logits_beside_others(load_target(published, context_length=config.context_length), tokens)
    expected = transformers_logits(published, tokens)
    far = 1e-4 if config.rule else 2e-5  # norms of states' outputs amplify small differences
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=far)
