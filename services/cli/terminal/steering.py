"""Characters that would control the terminal, in text from callers, models and ledgers. Imports nothing of rich."""

from __future__ import annotations

import re

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters other than tab and newline, characters that reverse the direction of text, lone surrogates."""


def printable(text: str) -> str:
    """`text` for a terminal, with a replacement for each character that would control it."""
    return STEERING.sub("\N{REPLACEMENT CHARACTER}", text)
