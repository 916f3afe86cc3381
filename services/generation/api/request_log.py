"""One line of the log for each request that the engine has taken: whose, how many tokens, how long, how it ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from services.generation.engine.events import Outcome
from services.generation.requests.resolution import Resolved

_log = logging.getLogger(__name__)


def log_request(resolved: Resolved, outcomes: Sequence[Outcome], seconds: float) -> None:
    """`outcomes` are those of all choices, `seconds` the time until the last of them ended.

    Counts are sums over the choices, but the prompt's, which is one; times are the longest of a choice. No text.
    """
    counts = [outcome.metrics for outcome in outcomes]
    event = {
        "id": resolved.request_id,
        "tenant": resolved.tenant,
        "method": resolved.decision.method,
        "outcome": ",".join(outcome.finish_reason for outcome in outcomes),
        "prompt_tokens": len(resolved.prompt),
        "cached_prompt_tokens": max(each.cached_prompt_tokens for each in counts),
        "output_tokens": sum(each.output_tokens for each in counts),
        "draft_tokens": sum(each.num_draft_tokens for each in counts),
        "accepted_tokens": sum(each.num_accepted_tokens for each in counts),
        "queue_seconds": round(max(each.queue_seconds for each in counts), 4),
        "prefill_seconds": round(max(each.prefill_seconds for each in counts), 4),
        "decode_seconds": round(max(each.decode_seconds for each in counts), 4),
        "seconds": round(seconds, 4),
    }
    _log.info("request", extra={"event": event})
