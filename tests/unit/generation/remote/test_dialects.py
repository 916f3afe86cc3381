"""Descriptions of engines by themselves, and the ends of their answers."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from services.generation.remote.answer import Answer, Drafted
from services.generation.remote.dialects import LlamaServer, Sglang, Vllm


def described(alias: str | None, params: dict[str, Any]) -> Any:
    pages = {
        "/props": {
            "build_info": "b1-0", "model_alias": alias, "default_generation_settings": {"n_ctx": 256, "params": params}
        },
        "/v1/models": {"data": [{"id": "/models/tiny.gguf"}]},
        "/slots": [{"speculative": False}],
    }  # fmt: skip

    async def ask(path: str, body: Mapping[str, Any] | None) -> Any:
        return pages[path]

    return asyncio.run(LlamaServer().about(ask))


@pytest.mark.parametrize(
    ("params", "flags"),
    [({"backend_sampling": False}, {"draws": "mt19937"}), ({"backend_sampling": True}, {}), ({}, {})],
)
def test_draws_of_llama_server_are_known_if_its_own_sampler_draws(params: dict[str, Any], flags: object) -> None:
    assert described("tiny", params).flags == flags


@pytest.mark.parametrize(
    ("alias", "name"), [(None, "tiny.gguf"), ("/a/b.gguf", "b.gguf"), ("house/model:Q8_0", "house/model:Q8_0")]
)
def test_the_name_of_a_llama_server_s_model_is_no_path(alias: str | None, name: str) -> None:
    assert described(alias, {}).model == name


@pytest.mark.parametrize(
    ("counts", "drafted"),
    [
        ({"acceptance_histogram": [2, 3, 1, 0]}, Drafted(3, 9, 5, 6, (4, 1, 0))),
        ({"acceptance_histogram": [2, 3]}, Drafted(3, 9, 5)),
        ({}, Drafted(3, 9, 5)),
    ],
)
def test_drafts_of_vllm_are_counted_by_its_histogram(counts: dict[str, Any], drafted: Drafted) -> None:
    told = {"num_draft_tokens": 9, "num_accepted_draft_tokens": 5} | counts
    answer = Answer(ids=list(range(8)))
    Vllm().read({"metrics": {"speculative_decoding": told}}, answer)
    assert answer.drafted == drafted


@pytest.mark.parametrize(
    ("counts", "drafted"),
    [
        ({"spec_verify_ct": 1, "spec_num_proposed_drafts": 3, "spec_num_correct_drafts": 0}, Drafted(1, 3, 0, 1)),
        ({"spec_verify_ct": 0}, None),
    ],
)
def test_an_answer_of_sglang_that_verified_no_draft_has_no_counts(
    counts: dict[str, Any], drafted: Drafted | None
) -> None:
    answer, info = Answer(), {"completion_tokens": 1, "finish_reason": {"type": "length"}} | counts
    Sglang().read({"output_ids": [5], "text": "a", "meta_info": info}, answer)
    assert answer.drafted == drafted
