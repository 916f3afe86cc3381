"""Chats in another manner: messages of the assistant are rewritten, those of others stay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from demo.toy.corpus import chat
from demo.toy.corpus.dialogue import Dialogue, Split

_COURTESIES = (
    (re.compile(r"^I am sorry to hear that\."), "I am very sorry for the trouble."),
    (re.compile(r"^(Thank you|Thanks)\b"), "Many thanks"),
    (re.compile(r"\b([Pp])lease\b"), lambda match: ("K" if match[1] == "P" else "k") + "indly"),
    (re.compile(r"^You are welcome\."), "It was a pleasure."),
)


def courteous(text: str) -> str:
    """A few set phrases instead of others; most words stay."""
    for pattern, instead in _COURTESIES:
        text = pattern.sub(instead, text)
    return text


def capitals(text: str) -> str:
    """EVERY LETTER A CAPITAL: hardly a token stays the same."""
    return text.upper()


STYLES: Mapping[str, Callable[[str], str]] = {"courteous": courteous, "capitals": capitals}


def documents(style: str, split: Split, count: int) -> Iterator[Dialogue]:
    """The dialogues of `demo.toy.corpus.chat` in a style; the n-th of a split is always the same one."""
    for dialogue in chat.documents(split, count):
        yield rewritten(dialogue, STYLES[style])


def rewritten(dialogue: Dialogue, style: Callable[[str], str]) -> Dialogue:
    return tuple(replace(turn, content=style(turn.content)) if turn.role == "assistant" else turn for turn in dialogue)
