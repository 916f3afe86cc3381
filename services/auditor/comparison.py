"""Receipted stream against replayed stream: token for token, then the stream digest. Values in, a finding out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.documents.verdict import Deviation
from ledger.encoding.commitment import OUTPUT_TEXT_DOMAIN, commit_text
from services.auditor.finding import Finding
from services.client.generation.completion import Replayed

_OPEN_ENDED = ("cancelled", "error")
"""Finish reasons that come from outside the stream: only the tokens emitted until then can be compared."""


def replay_limit(receipt: Receipt) -> int:
    """`max_output_tokens` of the replay: the emitted tokens, where the stream was cut off from outside.

    Otherwise 0, "as sampling says": the replay ends where decoding ends by itself, so an output that was cut short or
    goes on for too long differs.
    """
    return receipt.output.tokens if receipt.output.finish_reason in _OPEN_ENDED else 0


def compare(receipt: Receipt, output: Sequence[int], replayed: Replayed) -> Finding:
    """`output` is what the receipt commits to; `replayed` the same request computed again."""
    deviation = _first_difference(output, replayed)
    if deviation is not None:
        return Finding.deviates(deviation, replayed.decode_seconds, _token_difference(deviation))
    if receipt.output.stream_digest != replayed.stream_digest:
        return _end_difference(output, replayed, "same tokens, another stream digest: logits differ in bits")
    claimed = receipt.output.finish_reason
    if claimed not in _OPEN_ENDED and claimed != replayed.finish_reason:
        problem = f"the receipt ended by {claimed}, the replay by {replayed.finish_reason}"
        return _end_difference(output, replayed, problem)
    return Finding.exact(len(output), replayed.decode_seconds)


def misstated(receipt: Receipt, content: Content, replayed: Replayed) -> str | None:
    """What else the receipt says of an output whose stream is the replayed one, and is not so: in words, or None.

    Compared where the replay was computed in this process: its text, why it stopped, its least margin.
    """
    output, text = receipt.output, replayed.text
    if text is None:
        return None
    if output.text_commitment not in (None, commit_text(OUTPUT_TEXT_DOMAIN, content.output_salt, text)):
        return "the text that the receipt commits to is not that of its tokens"
    least = min(replayed.margins, default=math.inf)
    stated = {"stop_reason": replayed.stop_reason, "min_margin": least if math.isfinite(least) else None}
    wrong = [name for name, value in stated.items() if getattr(output, name) != value]
    return f"the receipt states another {wrong[0]} than the replay gives" if wrong else None


def _first_difference(output: Sequence[int], replayed: Replayed) -> Deviation | None:
    for position, (actual, expected) in enumerate(zip_longest(output, replayed.token_ids)):
        if actual != expected:
            return Deviation(position, expected, actual, expected_margin=_margin(replayed, position))
    return None


def _token_difference(deviation: Deviation) -> str:
    if deviation.expected_token is None:
        return f"the replay ended before position {deviation.position}"
    if deviation.actual_token is None:
        return f"the replay goes on at position {deviation.position}, where the receipted output ended"
    return (
        f"position {deviation.position}: token {deviation.expected_token} with speculation off, "
        f"token {deviation.actual_token} as served"
    )


def _end_difference(output: Sequence[int], replayed: Replayed, reason: str) -> Finding:
    """A difference that only the end of the stream shows is placed at its last token; where it began is unknown."""
    last = max(0, len(output) - 1)
    token = output[last] if output else None
    return Finding.deviates(Deviation(last, token, token, _margin(replayed, last)), replayed.decode_seconds, reason)


def _margin(replayed: Replayed, position: int) -> float | None:
    return replayed.margins[position] if position < len(replayed.margins) else None
