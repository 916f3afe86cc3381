"""Hybrids whose layers are all of one kind: each attends, or none does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.target.cpu import CpuTarget, load_target
from tests.fakes.engine_runs import run
from tests.fakes.tiny_families import FAMILIES, draw_vectors
from tests.fakes.tiny_model import TOKENS, logits_of, make_tiny_model

OF_ONE_KIND = {
    f"{family}, {kind}": FAMILIES[family] | {"layers": 2, "layer_types": [kind] * 2}
    for family, kinds in {
        "qwen3_5": ("full_attention", "linear_attention"),
        "qwen3_next": ("full_attention", "linear_attention"),
        "granite_hybrid": ("attention", "mamba"),
        "lfm2": ("full_attention", "conv"),
        "lfm2_moe": ("full_attention", "conv"),
    }.items()
    for kind in kinds
}


@pytest.fixture(scope="module", params=OF_ONE_KIND, ids=list(OF_ONE_KIND))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    members: dict[str, Any] = OF_ONE_KIND[request.param]
    return draw_vectors(make_tiny_model(tmp_path_factory.mktemp("model"), **members))


def request(name: str, tokens: list[int]) -> EngineRequest:
    return EngineRequest(name, tuple(tokens), SamplingParams(temperature=0.7, seed=5, max_tokens=8, ignore_eos=True))


def loaded(model: Path) -> CpuTarget:
    return load_target(model, cache_tokens=1024, threads=2)


def test_a_cached_prefix_changes_no_token(model: Path) -> None:
    first, second = request("first", TOKENS), request("second", [*TOKENS, 7, 9])
    alone = run(loaded(model), [second]).outcomes[second.key]
    shared = run(loaded(model), [first, second], arrivals=[0, 30]).outcomes[second.key]
    assert shared.metrics.cached_prompt_tokens > 33  # beyond as many steps of a state, one is kept for them
    assert (shared.token_ids, shared.stream_digest) == (alone.token_ids, alone.stream_digest)


@pytest.mark.slow
def test_logits_are_those_of_transformers_up_to_rounding(model: Path) -> None:
    published = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = published(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    np.testing.assert_allclose(logits_of(loaded(model), [40, len(TOKENS) - 40]), expected, rtol=1e-4, atol=1e-4)
