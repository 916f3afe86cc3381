"""Adapters: how their files are read, refused, and what peft computes with them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.target.adapters import adapter_cid, base_names, read_adapter, read_adapter_config
from services.generation.target.config.config import read_config
from services.generation.target.cpu import load_target
from services.generation.target.errors import AdapterInvalid, AdapterUnsupported, ModelNotFound, TargetError
from services.generation.target.identity import base_cid
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target
from tests.fakes.engine_runs import run
from tests.fakes.tiny_head import make_tiny_adapter
from tests.fakes.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return make_tiny_adapter(tmp_path / "adapter", base)


def edit(adapter: Path, **changes: Any) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(adapter: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(adapter / "adapter_model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, adapter / "adapter_model.safetensors")


def add(adapter: Path, name: str) -> None:
    edit_weights(adapter, lambda tensors: tensors.update({name: torch.zeros(4, 4)}))


def truncate(adapter: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


LAYER = "base_model.model.model.layers.0."
Q = LAYER + "self_attn.q_proj.lora_A.weight"
Fault = tuple[Callable[[Path], Any], type[TargetError], str]

FAULTS: dict[str, Fault] = {
    "no directory": (lambda a: a.rename(a.parent / "moved"), ModelNotFound, "no such directory"),
    "a file": (lambda a: (shutil.rmtree(a), a.touch()), ModelNotFound, "no such directory"),
    "no config": (lambda a: (a / "adapter_config.json").unlink(), ModelNotFound, "no adapter_config.json"),
    "config not JSON": (lambda a: (a / "adapter_config.json").write_text("{"), AdapterInvalid, "not readable as JSON"),
    "config too large": (lambda a: os.truncate(a / "adapter_config.json", 2**24 + 1), AdapterInvalid, "larger than"),
    "config nested": (
        lambda a: (a / "adapter_config.json").write_text("[" * 10**5), AdapterInvalid, "not readable as JSON",
    ),
    "config a list": (lambda a: (a / "adapter_config.json").write_text("[]"), AdapterInvalid, "expected a JSON object"),
    "prefix tuning": (lambda a: edit(a, peft_type="PREFIX_TUNING"), AdapterUnsupported, "peft_type: \"PREFIX_TUNING\""),
    "no kind": (lambda a: edit(a, peft_type=None), AdapterUnsupported, "peft_type: null"),
    "a classifier": (lambda a: edit(a, task_type="SEQ_CLS"), AdapterUnsupported, "task_type: \"SEQ_CLS\""),
    "DoRA": (lambda a: edit(a, use_dora=True), AdapterUnsupported, "use_dora: true is not supported"),
    "bias": (lambda a: edit(a, bias="all"), AdapterUnsupported, "bias: \"all\" is not supported; supported: \"none\""),
    "bias on B": (lambda a: edit(a, lora_bias=True), AdapterUnsupported, "lora_bias: true"),
    "modules saved whole": (
        lambda a: edit(a, modules_to_save=["lm_head"]), AdapterUnsupported, "modules_to_save: [\"lm_head\"]",
    ),
    "tokens trained": (lambda a: edit(a, trainable_token_indices=[1]), AdapterUnsupported, "trainable_token_indices"),
    "parameters adapted": (lambda a: edit(a, target_parameters=["x"]), AdapterUnsupported, "target_parameters"),
    "layers repeated": (lambda a: edit(a, layer_replication=[[0, 2]]), AdapterUnsupported, "layer_replication"),
    "weights transposed": (lambda a: edit(a, fan_in_fan_out=True), AdapterUnsupported, "fan_in_fan_out"),
    "base rewritten at the start": (
        lambda a: edit(a, init_lora_weights="pissa"), AdapterUnsupported, "init_lora_weights: \"pissa\"",
    ),
    "something of the future": (lambda a: edit(a, use_xlora=True), AdapterUnsupported, "use_xlora: true"),
    "embeddings": (
        lambda a: edit(a, target_modules=["embed_tokens"]), AdapterUnsupported,
        "target_modules: \"embed_tokens\" is not supported; supported: q_proj",
    ),
    "the head": (
        lambda a: edit(a, target_modules=["q_proj", "lm_head"]), AdapterUnsupported, "target_modules: \"lm_head\"",
    ),
    "a pattern of modules": (
        lambda a: edit(a, target_modules=".*_proj"), AdapterUnsupported, "target_modules: \".*_proj\", a pattern",
    ),
    "no modules": (lambda a: edit(a, target_modules=[]), AdapterInvalid, "target_modules: []"),
    "modules null": (lambda a: edit(a, target_modules=None), AdapterInvalid, "target_modules: null"),
    "modules of no layer": (
        lambda a: edit(a, target_modules=["model.layers.7.mlp.up_proj"]), AdapterInvalid, "names no module",
    ),
    "another layers_pattern": (lambda a: edit(a, layers_pattern="blocks"), AdapterUnsupported, "layers_pattern"),
    "a layer that is not there": (
        lambda a: edit(a, layers_to_transform=[5]), AdapterInvalid, "layers_to_transform: 5; expected layers of",
    ),
    "rank zero": (lambda a: edit(a, r=0), AdapterInvalid, "r: 0 for model.layers.0.self_attn.q_proj"),
    "rank a word": (lambda a: edit(a, r="four"), AdapterInvalid, "r: \"four\""),
    "rank enormous": (lambda a: edit(a, r=10**9), AdapterInvalid, "expected a whole number from 1 to 1024"),
    "alpha not a number": (lambda a: edit(a, lora_alpha="x"), AdapterInvalid, "lora_alpha: \"x\""),
    "alpha beyond float32": (lambda a: edit(a, lora_alpha=1e39), AdapterInvalid, "lora_alpha: 1e+39"),
    "alpha beyond float64": (lambda a: edit(a, lora_alpha=10**400), AdapterInvalid, "lora_alpha: 1000"),
    "alpha infinite": (lambda a: edit(a, lora_alpha=float("inf")), AdapterInvalid, "lora_alpha: Infinity"),
    "a rank by pattern of a wrong kind": (
        lambda a: edit(a, rank_pattern={"q_proj": 2.5}), AdapterInvalid, "r: 2.5 for model.layers.0.self_attn.q_proj",
    ),
    "rank_pattern a list": (lambda a: edit(a, rank_pattern=[1]), AdapterInvalid, "rank_pattern: expected an object"),
    "rank_pattern an expression": (
        lambda a: edit(a, rank_pattern={"(a+)+$": 2}), AdapterUnsupported, "rank_pattern: \"(a+)+$\" is not supported",
    ),
    "a rank that the weights do not have": (lambda a: edit(a, r=8), AdapterInvalid, "has shape [4, 64]"),
    "another base by name": (
        lambda a: edit(a, base_model_name_or_path="meta-llama/Llama-3.1-8B"), AdapterInvalid,
        "base_model_name_or_path: the adapter is for 'meta-llama/Llama-3.1-8B', and",
    ),
    "a base that is no text": (
        lambda a: edit(a, base_model_name_or_path=3), AdapterInvalid, "base_model_name_or_path: 3",
    ),
    "another base by its identifier": (
        lambda a: edit(a, revision="cidv1:sha256:" + "0" * 64), AdapterInvalid, "revision: the adapter is for the",
    ),
    "no weights": (
        lambda a: (a / "adapter_model.safetensors").unlink(), AdapterInvalid, "no adapter_model.safetensors",
    ),
    "weights truncated": (truncate, AdapterInvalid, "not a whole safetensors file"),
    "weights junk": (
        lambda a: (a / "adapter_model.safetensors").write_bytes(b"junk"), AdapterInvalid, "not a whole safetensors",
    ),
    "weights that declare ten gigabytes": (
        lambda a: (a / "adapter_model.safetensors").write_bytes((10 * 2**30).to_bytes(8, "little") + b"{}"),
        AdapterInvalid, "not a whole safetensors file",
    ),
    "a tensor missing": (lambda a: edit_weights(a, lambda t: t.pop(Q)), AdapterInvalid, f"{Q} missing"),
    "a tensor too many": (
        lambda a: add(a, LAYER + "self_attn.q_proj.lora_C.weight"), AdapterInvalid, "lora_C.weight is nothing that",
    ),
    "a layer too many": (
        lambda a: add(a, "base_model.model.model.layers.2.mlp.up_proj.lora_A.weight"), AdapterInvalid,
        "is the adapter for another base?",
    ),
    "a magnitude vector": (
        lambda a: add(a, LAYER + "self_attn.q_proj.lora_magnitude_vector"), AdapterUnsupported, "is DoRA",
    ),
    "embeddings saved whole": (
        lambda a: add(a, "base_model.model.model.embed_tokens.weight"), AdapterUnsupported, "is embeddings saved whole",
    ),
    "a head saved whole": (
        lambda a: add(a, "base_model.model.lm_head.weight"), AdapterUnsupported, "is a head saved whole",
    ),
    "a bias saved": (
        lambda a: add(a, LAYER + "self_attn.q_proj.lora_B.bias"), AdapterUnsupported, "is a bias",
    ),
    "a tensor of another shape": (
        lambda a: edit_weights(a, lambda t: t.update({Q: t[Q][:, :-1]})), AdapterInvalid, f"{Q} has shape [4, 63]",
    ),
    "a tensor of integers": (
        lambda a: edit_weights(a, lambda t: t.update({Q: t[Q].to(torch.int8)})), AdapterInvalid, f"{Q} has dtype I8",
    ),
    "a tensor of doubles": (
        lambda a: edit_weights(a, lambda t: t.update({Q: t[Q].to(torch.float64)})), AdapterInvalid, "has dtype F64",
    ),
    "a tensor that is not finite": (
        lambda a: edit_weights(a, lambda t: t[Q].view(-1)[3].fill_(float("nan"))), AdapterInvalid, "not finite",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_adapter_is_refused_with_its_fault(base: Path, adapter: Path, fault: str) -> None:
    break_it, kind, words = FAULTS[fault]
    break_it(adapter)
    with pytest.raises(kind) as refused:
        load_target(base, cache_tokens=64, adapters={"mine": adapter})
    assert type(refused.value) is kind
    assert str(refused.value).startswith("adapter mine: ")
    assert words in str(refused.value)


def test_an_adapter_of_a_larger_base_is_refused(base: Path, tmp_path: Path) -> None:
    larger = make_tiny_model(tmp_path / base.name, hidden=96, heads=6)
    adapter = make_tiny_adapter(tmp_path / "adapter", larger)
    with pytest.raises(AdapterInvalid, match=r"lora_A\.weight has shape \[4, 96\].*make it \[4, 64\].*another base\?"):
        load_target(base, cache_tokens=64, adapters={"mine": adapter})


def test_members_without_effect_and_neutral_ones_are_accepted(base: Path, adapter: Path) -> None:
    edit(
        adapter, peft_version="9.9", lora_dropout=0.5, inference_mode=False, loftq_config={}, modules_to_save=None,
        use_dora=False, layer_replication=[], trainable_token_indices=None, init_lora_weights="gaussian",
        qalora_group_size=16, runtime_config={"ephemeral_gpu_offload": False}, future_switch=False,
    )  # fmt: skip
    assert len(load_target(base, cache_tokens=64, adapters={"mine": adapter}).adapters) == 1


def test_the_base_is_known_by_its_folder_its_link_its_cache_and_its_identifier(base: Path, adapter: Path) -> None:
    link = adapter.parent / "linked"
    link.symlink_to(base)
    assert base_names(link) == {"linked", base.name}
    cached = adapter.parent / "models--meta-llama--Llama-3.1-8B" / "snapshots" / "0e9e39f2"
    shutil.copytree(base, cached)
    assert base_names(cached) == {"Llama-3.1-8B", "0e9e39f2"}
    served, identity = read_config(base), base_cid(base)
    for name, revision in (("somebody/linked", "main"), ("", None), (None, None), ("other", identity)):
        edit(adapter, base_model_name_or_path=name, revision=revision)
        assert read_adapter("mine", adapter, served, link, identity).updates


@pytest.mark.parametrize(
    "file", ["Llama-3.1-8B.Q4_K_M.gguf", "Llama-3.1-8B-Q4_1.gguf", "Llama-3.1-8B-f16.gguf", "Llama-3.1-8B.gguf"]
)
def test_an_adapter_knows_a_gguf_file_by_the_name_of_the_model(file: str) -> None:
    assert base_names(Path("/models") / file) == {file, "Llama-3.1-8B"}


def test_ranks_and_scales_follow_patterns_and_rslora(base: Path, adapter: Path) -> None:
    edit(
        adapter, r=4, lora_alpha=8, rank_pattern={"mlp.up_proj": 16, "up_proj": 2},
        alpha_pattern={r"^model\.layers\.1\.self_attn\.q_proj$": 1, "^q_proj": 99, "v_proj": 0},
    )  # fmt: skip
    found = {(update.module[13:]): update for update in read_adapter_config(adapter, 2).updates}
    assert len(found) == 14
    assert (found["0.mlp.up_proj"].rank, found["0.mlp.up_proj"].scale) == (16, 0.5)
    assert (found["0.self_attn.q_proj"].rank, found["0.self_attn.q_proj"].scale) == (4, 2.0)
    assert found["1.self_attn.q_proj"].scale == 0.25
    assert found["1.self_attn.v_proj"].scale == 0.0
    edit(adapter, use_rslora=True)
    found = {(update.module[13:]): update for update in read_adapter_config(adapter, 2).updates}
    assert (found["0.mlp.up_proj"].scale, found["0.self_attn.k_proj"].scale) == (2.0, 4.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened_exactly(base: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    adapter = make_tiny_adapter(tmp_path / "adapter", base, dtype=dtype)
    read = read_adapter("mine", adapter, read_config(base), base, base_cid(base))
    stored = load_file(adapter / "adapter_model.safetensors")[Q]
    assert stored.dtype == dtype
    assert np.array_equal(read.updates[0, "self_attn.q_proj"].down, stored.float().numpy())


def test_the_identifier_changes_with_any_byte_that_decides_and_with_no_other(base: Path, adapter: Path) -> None:
    before = adapter_cid(adapter)
    (adapter / "README.md").write_text("how it was made")
    assert adapter_cid(adapter) == before
    edit_weights(adapter, lambda tensors: tensors[Q].view(-1)[0].add_(1))
    after = adapter_cid(adapter)
    edit(adapter, lora_alpha=9)
    assert len({before, after, adapter_cid(adapter)}) == 3


LENGTH = 90
EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "every module": ({}, {"r": 4, "lora_alpha": 8, "target_modules": EVERY}),
    "attention only, rslora": (
        {}, {"r": 9, "lora_alpha": 5, "use_rslora": True, "target_modules": ["q_proj", "v_proj"]},
    ),
    "ranks and alphas by pattern": (
        {"architecture": "qwen3", "head_dim": 24},
        {
            "r": 4, "lora_alpha": 4, "target_modules": EVERY,
            "rank_pattern": {"down_proj": 13, "layers.1.mlp.up_proj": 1},
            "alpha_pattern": {r"^model\.layers\.0\.self_attn\.q_proj": 32, "mlp.gate_proj": 1},
        },
    ),
    "one layer, biases, an excluded module": (
        {"architecture": "qwen2"},
        {"r": 64, "lora_alpha": 16, "target_modules": EVERY, "layers_to_transform": [1], "layers_pattern": "layers",
         "exclude_modules": ["k_proj"]},
    ),
    "odd sizes": (
        {"architecture": "mistral", "hidden": 72, "heads": 6, "kv_heads": 3, "intermediate_size": 101},
        {"r": 5, "lora_alpha": 15, "target_modules": ["model.layers.0.mlp.down_proj", "gate_proj", "o_proj"]},
    ),
    "fused modules": (
        {"architecture": "phi3", "hidden": 72, "heads": 6, "kv_heads": 3, "intermediate_size": 101},
        {"r": 4, "lora_alpha": 8, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=ADAPTERS, ids=list(ADAPTERS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A base, and an adapter for it that peft made, with both of its matrices random, and saved."""
    members, lora = ADAPTERS[request.param]
    folder = tmp_path_factory.mktemp("adapted")
    base, adapter = make_tiny_model(folder / "base", **members), folder / "adapter"
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(task_type="CAUSAL_LM", **lora))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.normal_(std=0.1)
    model.save_pretrained(adapter)
    return base, adapter


def adapted_logits(target: Target, tokens: list[int]) -> np.ndarray:
    table: list[int] = []
    target.blocks.extend(table, len(tokens))
    rows = RowsBuilder()
    rows.add_tree(table, 0, tokens, range(-1, len(tokens) - 1), 0)
    logits = target.forward(rows.build()).logits
    target.blocks.release(table)
    return logits


def peft_model(base: Path, adapter: Path) -> PeftModel:
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(plain, adapter).eval()


@pytest.mark.slow
def test_logits_are_those_of_peft_up_to_rounding(made: tuple[Path, Path]) -> None:
    tokens = [(7 * i * i + 3 * i) % 384 for i in range(LENGTH)]
    with torch.no_grad():
        expected = peft_model(*made)(torch.tensor([tokens])).logits[0].numpy()
    found = adapted_logits(load_target(made[0], adapters={"adapter": made[1]}), tokens)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-4)


@pytest.mark.slow
def test_the_adapter_makes_a_difference(made: tuple[Path, Path]) -> None:
    tokens = [(7 * i * i + 3 * i) % 384 for i in range(LENGTH)]
    target = load_target(made[0], adapters={"adapter": made[1]})
    with torch.no_grad():
        bare = AutoModelForCausalLM.from_pretrained(made[0])(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(adapted_logits(target, tokens) - bare).max() > 0.05


@pytest.mark.slow
def test_greedy_tokens_are_those_of_peft(made: tuple[Path, Path]) -> None:
    target = load_target(made[0], adapters={"adapter": made[1]})
    request = EngineRequest(
        "r", (5, 9, 300), SamplingParams(max_tokens=40, ignore_eos=True), adapter=target.adapters[0].cid
    )
    found = run(target, [request]).outcomes[request.key].token_ids
    expected = peft_model(*made).generate(
        input_ids=torch.tensor([request.prompt]), attention_mask=torch.ones(1, 3, dtype=torch.int64), max_new_tokens=40,
        do_sample=False, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert list(found) == expected[0, 3:].tolist()
