"""The demo head is trained on prompts of the training split, and on none of those that it is measured on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import demo.toy
from demo.toy import head_prompts
from demo.toy import tokenizer as bpe
from demo.toy.corpus import code, mixture
from demo.toy.corpus.dialogue import Message, render

HERE = Path(demo.toy.__file__).parent
TOKENIZER = bpe.load(HERE / "base")


def _text(entry: dict[str, object]) -> str:
    if "prompt" in entry:
        return str(entry["prompt"])
    return render([Message(**m) for m in entry["messages"]], add_generation_prompt=True)  # type: ignore[attr-defined]


@pytest.mark.parametrize("domain", mixture.DOMAINS[1:])
def test_dialogues_begin_training_documents_and_wait_for_the_assistant(domain: str) -> None:
    documents = list(mixture.texts(domain, "train", 60))
    entries = head_prompts.entries(domain, TOKENIZER, 30)
    assert len(entries) == len({entry["id"] for entry in entries}) == 30
    for entry in entries:
        assert any(text.startswith(_text(entry)) for text in documents), entry["id"]
        assert len(TOKENIZER.encode(_text(entry))) <= head_prompts.LONGEST_PROMPT


@pytest.mark.slow
@pytest.mark.parametrize("domain", mixture.DOMAINS)
def test_no_prompt_is_one_that_the_head_is_measured_on(domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if domain == "code":  # a few files are enough, and as many as there are take long
        few = {split: code.files(split)[:8] for split in ("train", "held_out")}
        monkeypatch.setattr(code, "files", lambda split: few[split])
    measured = {
        _text(json.loads(line)) for line in (HERE / "prompts" / f"{domain}.jsonl").read_text("utf-8").splitlines()
    }
    trained = {_text(entry) for entry in head_prompts.entries(domain, TOKENIZER, 20 if domain == "code" else 500)}
    assert trained
    assert not trained & measured
