"""Real prompts, held out from the training of the bundled base."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from services.client import Message, Request, SamplingParams

DOMAINS = ("code", "tools", "passages", "chat")
_FOLDER = Path(__file__).resolve().parent.parent / "prompts"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A line of `demo/prompts/<domain>.jsonl`: text to continue, or a conversation to answer."""

    id: str
    domain: str
    text: str | None
    messages: tuple[Message, ...] | None

    @property
    def ending(self) -> str:
        """The part that the output continues or answers."""
        return self.text if self.text is not None else self.messages[-1].content if self.messages else ""

    def request(self, sampling: SamplingParams) -> Request:
        return Request(prompt=self.text, messages=self.messages, sampling=sampling, tenant="demo")


def read_prompts(domain: str, count: int) -> list[Prompt]:
    """`count` prompts spread evenly over a domain's file."""
    lines = (_FOLDER / f"{domain}.jsonl").read_text(encoding="utf-8").splitlines()
    step = max(1, len(lines) // count)
    return [_prompt(json.loads(line)) for line in lines[::step][:count]]


def _prompt(line: dict[str, object]) -> Prompt:
    messages, text = line.get("messages"), line.get("prompt")
    turns = tuple(Message(**turn) for turn in messages) if isinstance(messages, list) else None
    return Prompt(str(line["id"]), str(line["domain"]), text if isinstance(text, str) else None, turns)
