"""Adapters: reading and refusing their files, and equality with peft's results."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.target import adapters
from services.generation.target.adapters import (
    Trained,
    adapter_cid,
    base_names,
    is_named,
    read_adapter,
    read_adapter_config,
)
from services.generation.target.config.config import read_config
from services.generation.target.cpu import load_target
from services.generation.target.errors import AdapterInvalid, AdapterUnsupported, ModelNotFound, TargetError
from services.generation.target.identity import base_cid
from services.generation.target.model_settings import default_adapters_for
from tests.fakes.engine_runs import run
from tests.fakes.tiny_families import make_tiny_multimodal
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_head import edit_json, edit_tensors, make_tiny_adapter
from tests.fakes.tiny_model import TOKENS, logits_of, make_tiny_model
from tests.numerics.arithmetic import assert_same_bits


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return make_tiny_adapter(tmp_path / "adapter", base)


def edit(adapter: Path, **changes: Any) -> None:
    edit_json(adapter / "adapter_config.json", **changes)


def edit_weights(adapter: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    edit_tensors(adapter / "adapter_model.safetensors", change)


def add(adapter: Path, name: str) -> None:
    edit_weights(adapter, lambda tensors: tensors.update({name: torch.zeros(4, 4)}))


def truncate(adapter: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


LAYER = "base_model.model.model.layers.0."
Q = LAYER + "self_attn.q_proj.lora_A.weight"
UNSUPPORTED: list[tuple[str, object]] = [
    ("peft_type", "PREFIX_TUNING"), ("peft_type", None), ("task_type", "SEQ_CLS"), ("use_dora", True), ("bias", "all"),
    ("lora_bias", True), ("modules_to_save", ["lm_head"]), ("trainable_token_indices", [1]),
    ("target_parameters", ["x"]), ("layer_replication", [[0, 2]]), ("fan_in_fan_out", True),
    ("init_lora_weights", "pissa"), ("use_xlora", True), ("target_modules", ["embed_tokens"]),
    ("target_modules", ["q_proj", "lm_head"]), ("layers_pattern", "blocks"),
    ("target_modules", "x" * (1 << 14) + "|.*_proj"), ("rank_pattern", {"x" * (1 << 14): 2}),
]  # fmt: skip
INVALID: list[tuple[str, object]] = [
    ("target_modules", []), ("target_modules", None), ("target_modules", ["model.layers.7.mlp.up_proj"]),
    ("target_modules", ""), ("target_modules", "("), ("target_modules", "q_proj"), ("alpha_pattern", {"(": 1}),
    ("exclude_modules", "["), ("exclude_modules", 3),
    ("layers_to_transform", [5]), ("r", 0), ("r", "four"), ("r", 10**9), ("lora_alpha", "x"), ("lora_alpha", 1e39),
    ("lora_alpha", 10**400), ("lora_alpha", float("inf")), ("rank_pattern", [1]),
    ("base_model_name_or_path", "meta-llama/Llama-3.1-8B"), ("base_model_name_or_path", 3),
    ("revision", "cidv1:sha256:" + "0" * 64),
]  # fmt: skip


@pytest.mark.parametrize(
    ("member", "value", "kind"),
    [(*each, AdapterUnsupported) for each in UNSUPPORTED] + [(*each, AdapterInvalid) for each in INVALID],
)
def test_a_member_that_cannot_be_served_is_named(
    base: Path, adapter: Path, member: str, value: object, kind: type[TargetError]
) -> None:
    edit(adapter, **{member: value})
    refused(base, adapter, kind, f"{member}: ")


def refused(base: Path, adapter: Path, kind: type[TargetError], named: str) -> None:
    with pytest.raises(kind) as caught:
        load_target(base, cache_tokens=64, adapters={"mine": adapter})
    assert type(caught.value) is kind
    assert str(caught.value).startswith("--adapter: mine: ")
    assert named in str(caught.value)


CONFIG, WEIGHTS, OTHER = "adapter_config.json", "adapter_model.safetensors", "base_model.model."
FAULTS: dict[str, tuple[Callable[[Path], Any], type[TargetError], str]] = {
    "no directory": (lambda a: a.rename(a.parent / "moved"), ModelNotFound, ""),
    "a file": (lambda a: (shutil.rmtree(a), a.touch()), ModelNotFound, ""),
    "no config": (lambda a: (a / CONFIG).unlink(), ModelNotFound, CONFIG),
    "config not JSON": (lambda a: (a / CONFIG).write_text("{"), AdapterInvalid, CONFIG),
    "config too large": (lambda a: os.truncate(a / CONFIG, 2**24 + 1), AdapterInvalid, CONFIG),
    "config nested": (lambda a: (a / CONFIG).write_text("[" * 10**5), AdapterInvalid, CONFIG),
    "config a list": (lambda a: (a / CONFIG).write_text("[]"), AdapterInvalid, CONFIG),
    "a rank by pattern": (lambda a: edit(a, rank_pattern={"q_proj": 2.5}), AdapterInvalid, "r: 2.5"),
    "a rank that the weights do not have": (lambda a: edit(a, r=8), AdapterInvalid, "[4, 64]"),
    "no weights": (lambda a: (a / WEIGHTS).unlink(), AdapterInvalid, WEIGHTS),
    "weights truncated": (truncate, AdapterInvalid, WEIGHTS),
    "weights that declare ten gigabytes": (
        lambda a: (a / WEIGHTS).write_bytes((10 * 2**30).to_bytes(8, "little") + b"{}"), AdapterInvalid, WEIGHTS,
    ),
    "a tensor missing": (lambda a: edit_weights(a, lambda t: t.pop(Q)), AdapterInvalid, Q),
    "a tensor too many": (lambda a: add(a, LAYER + "self_attn.q_proj.lora_C.weight"), AdapterInvalid, "lora_C"),
    "a layer too many": (lambda a: add(a, OTHER + "model.layers.2.mlp.up_proj.lora_A.weight"), AdapterInvalid, "s.2"),
    "DoRA": (lambda a: add(a, LAYER + "self_attn.q_proj.lora_magnitude_vector"), AdapterUnsupported, "magnitude"),
    "embeddings saved whole": (lambda a: add(a, OTHER + "model.embed_tokens.weight"), AdapterUnsupported, "embed_tok"),
    "a head saved whole": (lambda a: add(a, OTHER + "lm_head.weight"), AdapterUnsupported, "lm_head"),
    "a bias saved": (lambda a: add(a, LAYER + "self_attn.q_proj.lora_B.bias"), AdapterUnsupported, "lora_B.bias"),
    "another shape": (lambda a: edit_weights(a, lambda t: t.update({Q: t[Q][:, :-1]})), AdapterInvalid, Q),
    "integers": (lambda a: edit_weights(a, lambda t: t.update({Q: t[Q].to(torch.int8)})), AdapterInvalid, Q),
    "doubles": (lambda a: edit_weights(a, lambda t: t.update({Q: t[Q].to(torch.float64)})), AdapterInvalid, Q),
    "not finite": (lambda a: edit_weights(a, lambda t: t[Q].view(-1)[3].fill_(float("nan"))), AdapterInvalid, Q),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_adapter_is_refused_with_its_fault(base: Path, adapter: Path, fault: str) -> None:
    break_it, kind, named = FAULTS[fault]
    break_it(adapter)
    refused(base, adapter, kind, named)


def test_an_adapter_of_a_larger_base_is_refused(base: Path, tmp_path: Path) -> None:
    larger = make_tiny_model(tmp_path / base.name, hidden=96, heads=6)
    adapter = make_tiny_adapter(tmp_path / "adapter", larger)
    refused(base, adapter, AdapterInvalid, "[4, 96]")


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
    for name, revision in (("example/linked", "main"), ("", None), (None, None), ("other", identity)):
        edit(adapter, base_model_name_or_path=name, revision=revision)
        assert read_adapter("mine", adapter, served, link, identity).updates


@pytest.mark.parametrize(
    "file", ["Llama-3.1-8B.Q4_K_M.gguf", "Llama-3.1-8B-Q4_1.gguf", "Llama-3.1-8B-f16.gguf", "Llama-3.1-8B.gguf"]
)
def test_an_adapter_knows_a_gguf_file_by_the_name_of_the_model(file: str) -> None:
    assert base_names(Path("/models") / file) == {file, "Llama-3.1-8B"}


@pytest.mark.parametrize(
    ("named", "fields", "known"),
    [
        ("Qwen/Qwen2.5-Coder-1.5B-Instruct", {}, True),
        ("qwen/qwen2.5-coder-1.5b-instruct/", {}, True),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", {}, False),
        ("maker/My-Own-Model", {"general.name": "My Own Model GGUF"}, True),
        ("maker/my_own_model", {"general.name": "My Own Model"}, True),
        (
            "maker/Own-1B-Chat",
            {"general.basename": "own", "general.size_label": "1B", "general.finetune": "chat"},
            True,
        ),
        ("maker/Own", {"general.basename": "own", "general.size_label": "1B"}, True),
        ("maker/1B-Chat", {"general.size_label": "1B", "general.finetune": "chat"}, False),
    ],
)
def test_a_base_is_known_in_any_case_and_by_the_names_that_a_gguf_file_gives_itself(
    named: str, fields: dict[str, str], known: bool, tmp_path: Path
) -> None:
    file = tmp_path / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
    make_tiny_gguf(file, change_metadata=lambda metadata: metadata.update(fields))
    assert is_named(named, base_names(file)) is known
    (tmp_path / "adapters" / "one").mkdir(parents=True)
    (tmp_path / "adapters" / "one" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": named}))
    assert bool(default_adapters_for(file)) is known


def test_ranks_and_scales_follow_patterns_and_rslora(base: Path, adapter: Path) -> None:
    modules = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    trained = Trained(prefix="model.", other_parts=False)
    edit(
        adapter, r=4, lora_alpha=8, rank_pattern={"mlp.up_proj": 16, "up_proj": 2},
        alpha_pattern={r"^model\.layers\.1\.self_attn\.q_proj$": 1, "^q_proj": 99, "v_proj": 0},
    )  # fmt: skip
    found = {(update.module[13:]): update for update in read_adapter_config(adapter, 2, modules, trained).updates}
    assert len(found) == 14
    assert (found["0.mlp.up_proj"].rank, found["0.mlp.up_proj"].scale) == (16, 0.5)
    assert (found["0.self_attn.q_proj"].rank, found["0.self_attn.q_proj"].scale) == (4, 2.0)
    assert found["1.self_attn.q_proj"].scale == 0.25
    assert found["1.self_attn.v_proj"].scale == 0.0
    edit(adapter, use_rslora=True)
    found = {(update.module[13:]): update for update in read_adapter_config(adapter, 2, modules, trained).updates}
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


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapter_that_is_replaced_between_reading_and_hashing_is_refused(
    base: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    def replaced(directory: Path) -> str:
        (new := directory / "new").write_bytes((directory / file).read_bytes())
        new.replace(directory / file)
        return adapter_cid(directory)

    monkeypatch.setattr(adapters, "adapter_cid", replaced)
    with pytest.raises(AdapterInvalid, match=file):
        load_target(base, cache_tokens=64, adapters={"mine": adapter})


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
    "a pattern of modules, and patterns of alphas in which a dot is any character": (
        {},
        {
            "r": 4, "lora_alpha": 8, "exclude_modules": r".*\.1\.mlp\..*",
            "target_modules": r"^(?!.*down_proj)(?:model\.layers\.\d+\.\w+)\.(?:[qv]_proj|(up|down)_proj)$",
            "alpha_pattern": {"self_attn.q.proj": 64, "up.proj|v_proj": 1}, "rank_pattern": {"layers.[0-9].*v_proj": 2},
        },
    ),
    "a whole name and chosen layers": (
        {},
        {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "model.layers.0.mlp.up_proj"],
         "layers_to_transform": [1]},
    ),
    "all linear layers": ({}, {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}),
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
    adapted(AutoModelForCausalLM.from_pretrained(base), task_type="CAUSAL_LM", **lora).save_pretrained(adapter)
    return base, adapter


def test_patterns_have_a_limit_of_time(base: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "_SECONDS", 0)
    for member, value in (("target_modules", ".*_proj"), ("alpha_pattern", {"q_proj": 1})):
        edit(adapter, **{"target_modules": EVERY} | {member: value})
        refused(base, adapter, AdapterUnsupported, f"{member}: ")


def test_a_pattern_of_modules_has_to_be_that_of_the_tensors(base: Path, adapter: Path) -> None:
    edit(adapter, target_modules=r".*_proj")
    assert len(load_target(base, cache_tokens=64, adapters={"mine": adapter}).adapters) == 1
    edit(adapter, target_modules=r".*self_attn\..*_proj")
    refused(base, adapter, AdapterInvalid, "mlp.")
    edit(adapter, target_modules=r".*_proj", layers_to_transform=[0])
    refused(base, adapter, AdapterInvalid, "layers_to_transform: ")


WRAPPERS = {"gemma3": "model.language_model.", "mistral3": "model.language_model.", "qwen3_vl": "model.language_model."}


@pytest.mark.parametrize("family", WRAPPERS)
def test_an_adapter_of_a_multimodal_wrapper_is_served_on_its_part_for_text(family: str, tmp_path: Path) -> None:
    """By names of this and of older versions of transformers. Updates of the image part, which text does not use, are
    ignored.
    """
    plain = make_tiny_multimodal(tmp_path / family, family)
    lora = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"], "task_type": "CAUSAL_LM"}
    model = adapted(plain, **lora, alpha_pattern={"language_model.layers.1.*q_proj": 64}).eval()
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([TOKENS[:40]])).logits[0].numpy()
    model.save_pretrained(tmp_path / "adapter")
    edit(tmp_path / "adapter", base_model_name_or_path=family)
    today = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert any(name.startswith(f"{OTHER}{WRAPPERS[family]}layers.") for name in today)
    found = logits_of(load_target(tmp_path / family, adapters={"a": tmp_path / "adapter"}), (), TOKENS[:40], 0)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-4)

    def older(tensors: dict[str, torch.Tensor]) -> None:
        renamed = {n.replace("model.language_model.", "language_model.model.", 1): t for n, t in tensors.items()}
        tensors.clear()
        tensors.update(renamed)

    edit_weights(tmp_path / "adapter", older)
    edit(tmp_path / "adapter", alpha_pattern={"language_model.model.layers.1.*q_proj": 64})
    again = logits_of(load_target(tmp_path / family, adapters={"a": tmp_path / "adapter"}), (), TOKENS[:40], 0)
    assert_same_bits(found, again)


def test_modules_that_are_named_in_two_ways_are_refused(base: Path, adapter: Path) -> None:
    wrapped = Q.replace("model.model.", "model.model.language_model.")
    edit_weights(adapter, lambda tensors: tensors.update({wrapped: tensors[Q] + 1}))
    refused(base, adapter, AdapterInvalid, "two names")
    edit_weights(adapter, lambda tensors: tensors.pop(Q))
    refused(base, adapter, AdapterInvalid, "language_model.model.")


def adapted(plain: PreTrainedModel, **lora: Any) -> Any:
    """peft's model of a base with a random adapter. peft takes three CPU seconds to import, which one worker spends."""
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        model = get_peft_model(plain, LoraConfig(**lora))
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    return model


def peft_model(base: Path, adapter: Path) -> Any:
    from peft import PeftModel

    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(plain, adapter).eval()


@pytest.mark.slow
def test_logits_are_those_of_peft_up_to_rounding_and_not_those_of_the_base(made: tuple[Path, Path]) -> None:
    with torch.no_grad():
        expected = peft_model(*made)(torch.tensor([TOKENS])).logits[0].numpy()
    target = load_target(made[0], adapters={"adapter": made[1]})
    found = logits_of(target, adapter=0)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-4)
    assert np.abs(found - logits_of(target)).max() > 0.05


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
