"""Real prompts of six kinds; the head of the demo's model was not trained on them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from services.client import Message, Request, SamplingParams

KINDS = ("question", "code", "rewrite", "summary", "data", "maths")
_FILE = Path(__file__).parent / "questions.jsonl"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A line of `questions.jsonl`: a conversation to answer."""

    id: str
    kind: str
    messages: tuple[Message, ...]

    @property
    def ending(self) -> str:
        """The part that the output answers."""
        return self.messages[-1].content

    def request(self, sampling: SamplingParams) -> Request:
        return Request(messages=self.messages, sampling=sampling, tenant="demo")


def read_prompts(kind: str, count: int) -> list[Prompt]:
    """The first `count` prompts of a kind."""
    lines = map(json.loads, _FILE.read_text(encoding="utf-8").splitlines())
    of_kind = [line for line in lines if line["kind"] == kind]
    return [Prompt(line["id"], kind, tuple(Message(**turn) for turn in line["messages"])) for line in of_kind[:count]]
