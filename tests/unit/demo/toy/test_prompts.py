"""The committed prompts: enough of them, within bounds, held out from training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import demo.toy
from demo.toy.corpus import mixture
from demo.toy.corpus.dialogue import Message, render

PROMPTS = Path(demo.toy.__file__).parent / "prompts"
DOMAINS = ("code", "tools", "passages", "chat")


def _prompts(domain: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (PROMPTS / f"{domain}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("domain", DOMAINS)
def test_there_are_enough_different_prompts_with_ids_in_order(domain: str) -> None:
    prompts = _prompts(domain)
    assert len(prompts) == 144
    assert [p["id"] for p in prompts] == [f"{domain}-{number:03}" for number in range(len(prompts))]
    assert {p["domain"] for p in prompts} == {domain}
    assert len({p.get("prompt") or json.dumps(p["messages"]) for p in prompts}) == len(prompts)


@pytest.mark.parametrize("domain", DOMAINS[1:])
def test_a_dialogue_prompt_begins_a_held_out_dialogue_and_waits_for_the_assistant(domain: str) -> None:
    held_out = list(mixture.texts(domain, "held_out", 400))
    for prompt in _prompts(domain):
        messages = [Message(**m) for m in prompt["messages"]]
        assert messages[-1].role in {"user", "tool"}
        opening = render(messages, add_generation_prompt=True)
        assert any(text.startswith(opening) for text in held_out), prompt["id"]


@pytest.mark.parametrize("domain", DOMAINS[1:])
def test_no_dialogue_prompt_is_in_the_training_split(domain: str) -> None:
    openings = {render([Message(**m) for m in p["messages"]]) for p in _prompts(domain)}
    longest = max(map(len, openings))
    for text in mixture.texts(domain, "train", 1000):
        assert not any(text.startswith(opening) for opening in openings if len(opening) > 150), text[:longest]


def test_code_prompts_are_code_to_go_on_with() -> None:
    for prompt in _prompts("code"):
        text = prompt["prompt"]
        assert "def " in text
        assert text == text.strip()
        assert 250 < len(text) < 1500
