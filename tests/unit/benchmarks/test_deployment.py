"""The benchmark's datastore holds what a deployment would have, and no answer to a measured prompt."""

from __future__ import annotations

import json

import pytest

from benchmarks.deployment import documents, passages_asked_about
from benchmarks.prompts import KNOWN, MEASURED, PROMPTS
from demo import tokenizer as bpe
from demo.build_prompts import cases
from demo.corpus.mixture import texts


def _questions() -> list[str]:
    lines = (PROMPTS / "passages.jsonl").read_text().splitlines()
    return [json.loads(line)["messages"][0]["content"] for line in lines]


def test_of_a_prompt_only_the_passage_is_in_the_store() -> None:
    passages, prompts = list(passages_asked_about()), _questions()
    assert len(passages) == len(prompts) == KNOWN
    for passage, prompt in zip(passages, prompts, strict=True):
        assert passage in prompt
        rest = prompt.replace(passage, "")
        assert any(
            word in rest
            for word in ("Quote", "uote ", "What", "Which", "Where", "Find", "Repeat", "Starting", "I want")
        )


@pytest.mark.parametrize("domain", ["tools", "passages", "chat"])
def test_no_reference_answer_of_a_prompt_is_in_the_store(domain: str) -> None:
    """Answers that say what only their own prompt can tell; a chat's stock phrases answer many. Of chats those that
    `python -m benchmarks` measures: among the others are lists of steps that a training chat has, too.
    """
    model = PROMPTS.parent / "base"
    asked = cases(domain, bpe.load(model))[: MEASURED if domain == "chat" else KNOWN]
    answers = {case.reference for case in asked if len(case.reference) > 120}
    store = "\n".join(text for name, found in documents(50).items() if "library" not in name for text in found)
    assert answers or domain == "chat"
    assert not [answer for answer in answers if answer in store]


@pytest.mark.slow
def test_dialogues_and_code_are_of_the_training_split() -> None:
    held = {name: list(found) for name, found in documents(20).items()}
    assert held["training chats"] == list(texts("chat", "train", 20))
    assert not set(held["training files of the standard library"]) & set(texts("code", "held_out", 0))
