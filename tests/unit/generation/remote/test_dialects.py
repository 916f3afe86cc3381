"""Descriptions of engines by themselves."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from services.generation.remote.dialects import LlamaServer


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
