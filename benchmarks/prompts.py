"""The demo's held-out prompts, as token ids."""

from __future__ import annotations

import json
from pathlib import Path

from services.generation.engine.text.tokenizer import Tokenizer

DOMAINS = ("code", "tools", "passages", "chat")
PROMPTS = Path(__file__).parents[1] / "demo" / "toy" / "prompts"


def load_prompts(domain: str, tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """The first `count` prompts of a domain."""
    lines = (PROMPTS / f"{domain}.jsonl").read_text().splitlines()[:count]
    return [_encode(json.loads(line), tokenizer) for line in lines]


def _encode(entry: dict[str, object], tokenizer: Tokenizer) -> list[int]:
    messages = entry.get("messages")
    if isinstance(messages, list):
        return tokenizer.encode_chat(messages)
    return tokenizer.encode(str(entry["prompt"]))
