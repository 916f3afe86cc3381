"""A dialogue, and the one chat template that both training and serving render it with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]
Split = Literal["train", "held_out"]

BOUNDARY = "<|endoftext|>"
"""Opens every document; also the end-of-text token."""
END_OF_TURN = "<|end|>"
ROLE_TOKENS: dict[Role, str] = {
    "system": "<|system|>",
    "user": "<|user|>",
    "assistant": "<|assistant|>",
    "tool": "<|tool|>",
}
SPECIAL_TOKENS = (BOUNDARY, END_OF_TURN, *ROLE_TOKENS.values())

CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{- raise_exception('unknown role: ' ~ message.role) }}"
    "{%- endif %}"
    "{{- '<|' ~ message.role ~ '|>' ~ message.content ~ '<|end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn; `content` is plain text without special tokens."""

    role: Role
    content: str


Dialogue = tuple[Message, ...]


def render(messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
    """The text that training sees; equal to what `CHAT_TEMPLATE` renders."""
    turns = "".join(f"{ROLE_TOKENS[m.role]}{m.content}{END_OF_TURN}" for m in messages)
    return BOUNDARY + turns + (ROLE_TOKENS["assistant"] if add_generation_prompt else "")
