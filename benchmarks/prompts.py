"""The demo's questions of six kinds, as conversations and as token ids. No head of ours was trained on them."""

from __future__ import annotations

import json
from pathlib import Path

from services.generation.engine.text.tokenizer import Tokenizer

KINDS = ("question", "code", "rewrite", "summary", "data", "maths")
_FILE = Path(__file__).parents[1] / "demo" / "main_job" / "questions.jsonl"


def conversations(kind: str, count: int) -> list[list[dict[str, str]]]:
    """The first `count` conversations of a kind, as messages with role and content."""
    entries = map(json.loads, _FILE.read_text(encoding="utf-8").splitlines())
    return [entry["messages"] for entry in entries if entry["kind"] == kind][:count]


def load_prompts(kind: str, tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """The same as token ids."""
    return [tokenizer.encode_chat(messages) for messages in conversations(kind, count)]
