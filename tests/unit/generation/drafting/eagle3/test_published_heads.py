"""Heads as they are published for Qwen3-8B, gpt-oss, Llama 4 Maverick and Gemma 4 31B, small, with a base of the
family: they load, they draft, and no token changes.

The members are those of the checkpoints' config.json: RedHatAI's of speculators, nvidia's and SpecForge's flat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from services.generation.drafting.eagle3.drafter import Eagle3Drafter
from services.generation.drafting.eagle3.loading import load_head
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.target.cpu import CpuTarget
from tests.fakes.engine_runs import CHEAP_ROWS, run
from tests.fakes.heads import head_config, write_safeailab, write_speculators
from tests.fakes.tiny_families import FAMILIES, draw_vectors
from tests.fakes.tiny_model import make_tiny_model
from tests.fakes.tiny_targets import TOKENS, target_of

_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Published:
    base: str
    write: Callable[..., dict[str, torch.Tensor]]
    layers: tuple[int, ...]  # the streams that are read
    members: dict[str, Any] = field(default_factory=dict)  # of config.json
    choices: dict[str, Any] = field(default_factory=dict)  # of the head


HEADS = {
    "RedHatAI, Qwen3-8B": Published(
        "qwen3", write_speculators, (1, 2, 3), {_IDS: [1, 2, 3]}, {"norm_before_residual": True},
    ),
    "RedHatAI, gpt-oss-20b": Published(
        "gpt_oss", write_speculators, (0, 1, 3), {_IDS: [0, 1, 3]},
        {"norm_before_fc": True, "norm_before_residual": True, "own_embeddings": True},
    ),
    "nvidia, gpt-oss-120b, the last stream among those read": Published(
        "gpt_oss", write_safeailab, (1, 2, 3),
        {"eagle_config": {_IDS: [1, 2, 3], "use_aux_hidden_state": True}}, {"norm_before_fc": True},
    ),
    "nvidia, Llama-4-Maverick": Published(
        "llama4", write_safeailab, (2, 3, 5),
        {"eagle_config": {_IDS: [1, 2, 4], "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True}},
    ),
    "the same, converted by speculators": Published(
        "llama4", write_speculators, (1, 3, 4), {_IDS: [1, 3, 4], "inference_type": "text"},
    ),
    "RedHatAI, Gemma-4-31B": Published(
        "gemma4", write_speculators, (1, 2, 3), {_IDS: [1, 2, 3]},
        {"own_embeddings": True, "norm_before_residual": True},
    ),
    "of Gemma's own activation": Published(
        "gemma4", write_safeailab, (1, 2, 3),
        {_IDS: [0, 1, 2], "hidden_act": "gelu_pytorch_tanh", "architectures": ["LlamaEagle3DraftModel"]},
        {"hidden_act": "gelu_pytorch_tanh"},
    ),
}  # fmt: skip
BASES: dict[str, dict[str, Any]] = FAMILIES | {"qwen3": {"architecture": "qwen3", "layers": 3, "head_dim": 24}}


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CpuTarget]:
    def target(name: str) -> CpuTarget:
        return target_of(draw_vectors(make_tiny_model(tmp_path_factory.mktemp("base"), **BASES[name])))

    return {name: target(name) for name in {head.base for head in HEADS.values()}}


@pytest.mark.parametrize("name", HEADS)
def test_a_published_head_drafts_for_its_base(name: str, targets: dict[str, CpuTarget], tmp_path: Path) -> None:
    published = HEADS[name]
    target = targets[published.base]
    config = head_config(target.config, feature_layers=published.layers, **published.choices)
    published.write(tmp_path, config, **published.members)
    head = load_head(tmp_path, target.config)
    assert head.config == config
    drafter = Eagle3Drafter(head, target, CHEAP_ROWS, copies=False)
    sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    drafted = EngineRequest("drafted", tuple(TOKENS[:70]), sampling, method="eagle3", k=3)
    plain = EngineRequest("plain", drafted.prompt, sampling)
    found = run(target, [drafted], drafters={"eagle3": drafter}).outcomes[drafted.key]
    assert found.token_ids == run(target, [plain]).outcomes[plain.key].token_ids
    assert found.metrics.num_draft_tokens > 0
