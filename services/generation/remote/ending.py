"""The end of an answer: whether its tokens give the finish reason that the engine states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ledger.documents.receipt import Sampling
from services.generation.engine.request import SamplingParams


def unended(
    finish: str,
    stop_reason: str | int | None,
    ids: Sequence[int],
    sampling: SamplingParams | Sampling,
    ends: Collection[int],
    spelled: Callable[[], str | None] = lambda: None,
) -> str | None:
    """The reason why an answer cannot have ended as stated; None if it can. `ends`: the ids with which the model ends
    an output; if there are none, they are unknown. `spelled`: the text of the ids, None if it is unknown or compared
    elsewhere.

    `length` needs max_tokens tokens, as requests leave room in the context. `stop` needs a requested string in the
    text, or a last token that ends outputs. A constraint may be complete without either.
    """
    if finish == "length" and len(ids) < sampling.max_tokens:
        return f"ended by length after {len(ids)} tokens, with a max_tokens of {sampling.max_tokens}"
    if finish == "stop" and isinstance(stop_reason, str):
        text = spelled()
        lacking = text is not None and stop_reason not in text
        return f"stopped by {stop_reason!r}, which the text of its tokens lacks" if lacking else None
    if finish != "stop" or sampling.structured_outputs is not None:
        return None
    if not ids or (ends and ids[-1] not in ends and ids[-1] not in sampling.stop_token_ids):
        return "stopped without an end: the last token ends no output, and no stop string was found"
    return None
