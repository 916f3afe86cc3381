"""Logits with an adapter are those of peft on transformers' own model, for every family; so are the greedy tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.target.cpu import load_target
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target
from tests.fakes.engine_runs import run
from tests.fakes.tiny_model import make_tiny_model

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
