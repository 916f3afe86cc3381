"""The table of public heads, and the names under which a base finds its own."""

import pytest

from services.generation.drafting.methods import METHODS
from services.generation.target.naming.hub_names import SHORT, HubName
from services.generation.target.naming.known_heads import DRAFT_MODELS, KNOWN_HEADS, known_draft_model, known_heads


def test_every_known_head_is_named_once_and_of_a_kind_that_loads() -> None:
    assert len({head.repo for head in KNOWN_HEADS}) == len(KNOWN_HEADS)
    assert {head.kind for head in KNOWN_HEADS} <= {spec.name for spec in METHODS if spec.heads is not None}
    for head in KNOWN_HEADS:
        named = HubName.of(head.name)
        assert named is not None
        assert (named.repo, named.wanted) == (head.repo, "")


@pytest.mark.parametrize("name", ["Qwen/Qwen3-4B", "Qwen3-4B-GGUF", "Qwen3 4B", "qwen3_4b", SHORT["qwen3:4b"]])
def test_a_base_is_found_under_the_names_that_its_files_have(name: str) -> None:
    assert next(head.repo for head in known_heads([name])) == "AngelSlim/Qwen3-4B_eagle3"


def test_another_size_or_kind_of_a_base_has_no_heads_of_it() -> None:
    assert known_heads(["Qwen3-4B-Instruct-2507", "Qwen3-0.6B", "Llama-3.1-8B"]) == []


def test_a_large_base_has_a_small_model_of_its_family_and_a_small_base_has_none() -> None:
    assert known_draft_model(["qwen2.5-coder-7b-instruct"]) == "hf:Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"
    assert known_draft_model(["Qwen2.5-Coder-1.5B-Instruct", "Qwen3-4B"]) is None
    assert all(HubName.of(small) is not None for small in DRAFT_MODELS)
