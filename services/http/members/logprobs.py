"""Log-probabilities in the forms that OpenAI has had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.client.generation.completion import PositionLogprobs, TokenLogprob

_INCOMPLETE = "\ufffd"


def chat_logprobs(positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
    """`logprobs` of a chat's choice."""
    return {"content": response_logprobs(positions), "refusal": None}


def response_logprobs(positions: Sequence[PositionLogprobs]) -> list[dict[str, Any]]:
    """`logprobs` of a response's text."""
    return [{**_token(each.chosen), "top_logprobs": [_token(other) for other in each.top]} for each in positions]


def text_logprobs(positions: Sequence[PositionLogprobs], offset: int) -> dict[str, Any]:
    """`logprobs` of a completion's choice; `offset` is where its first token begins in the text, in characters."""
    offsets = []
    for each in positions:
        offsets.append(offset)
        offset += len(each.chosen.text)
    return {
        "tokens": [each.chosen.text for each in positions],
        "token_logprobs": [each.chosen.logprob for each in positions],
        "top_logprobs": [_by_text(each) for each in positions],
        "text_offset": offsets,
    }


def text_length(positions: Sequence[PositionLogprobs]) -> int:
    """Characters of the tokens, each by itself."""
    return sum(len(each.chosen.text) for each in positions)


def _token(token: TokenLogprob) -> dict[str, Any]:
    """`bytes` is null for a token that is part of a character: its text does not tell which part."""
    known = None if _INCOMPLETE in token.text else list(token.text.encode())
    return {"token": token.text, "logprob": token.logprob, "bytes": known}


def _by_text(position: PositionLogprobs) -> dict[str, float]:
    """The best token of each text, and the chosen one."""
    found: dict[str, float] = {}
    for token in (*position.top, position.chosen):
        found.setdefault(token.text, token.logprob)
    return found
