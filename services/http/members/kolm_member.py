"""The member `kolm` of an answer: the receipts, and acceptance under vLLM's names."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from services.client import Finished, Request
from services.client.generation.completion import Choice, Metrics, Resolved
from services.http.members.receipts import receipts_json

_FINGERPRINT_DIGITS = 12  # of the profile's identifier, 48 bits: enough to see that it is another one


class KolmMember:
    """Of one answer. `files`: each receipt also as a file."""

    def __init__(self, asked: Request, resolved: Resolved, promise: bytes | None, *, files: bool) -> None:
        self._asked, self._resolved, self._promise, self._files = asked, resolved, promise, files

    def started(self) -> dict[str, Any]:
        """The members that are known before the first token."""
        resolved = self._resolved
        return {
            "request_id": resolved.request_id,
            "seed": resolved.sampling.get("seed"),
            "profile_cid": resolved.profile_cid,
            "method": resolved.method,
            "requested_method": resolved.requested_method,
            "fallback_reason": resolved.fallback_reason,
            "promise": None if self._promise is None else base64.b64encode(self._promise).decode(),
        }

    def ended(self, metrics: Metrics, choices: Sequence[Choice | Finished]) -> dict[str, Any]:
        receipts = receipts_json(choices, self._asked, files=self._files)
        return {**self.started(), "receipts": receipts, "acceptance": _acceptance(metrics)}


def fingerprint(resolved: Resolved) -> str:
    """OpenAI's `system_fingerprint`: equal ones compute the same tokens."""
    return "fp_" + resolved.profile_cid.rpartition(":")[2][:_FINGERPRINT_DIGITS]


def speculative_decoding(metrics: Metrics) -> dict[str, Any]:
    """The member `metrics`, as vLLM has it with `--per-request-spec-decode-metrics summary`.

    The histogram counts passes that verified a draft, by how many of its tokens they accepted; `num_spec_tokens` is the
    most that one accepted.
    """
    steps, reached = metrics.num_drafts, (metrics.num_drafts, *metrics.num_accepted_tokens_per_pos)
    histogram = [here - beyond for here, beyond in zip(reached, (*reached[1:], 0), strict=True)]
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1 + metrics.num_accepted_tokens / steps if steps else 1.0,
            "draft_acceptance_rate": metrics.acceptance_rate,
            "acceptance_histogram": histogram,
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": metrics.num_accepted_tokens,
            "num_draft_tokens": metrics.num_draft_tokens,
            "num_spec_tokens": len(histogram) - 1,
        }
    }


def _acceptance(metrics: Metrics) -> dict[str, Any]:
    """Under the names of `SpeculationMetrics`: `mean_acceptance_length` is over all passes."""
    return {
        "num_drafts": metrics.num_drafts,
        "num_draft_tokens": metrics.num_draft_tokens,
        "num_accepted_tokens": metrics.num_accepted_tokens,
        "num_accepted_tokens_per_pos": list(metrics.num_accepted_tokens_per_pos),
        "acceptance_rate": metrics.acceptance_rate,
        "mean_acceptance_length": metrics.mean_acceptance_length,
        "target_passes": metrics.target_passes,
    }
