"""The span of a request, with the attributes of OpenTelemetry's conventions for generative AI
(github.com/open-telemetry/semantic-conventions-genai, spans of type `gen_ai.client.inference`), and kolm's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ledger.documents.audit import DEVIATION, EXACT, SAME, UNCHECKED
from services.generation.api.runner import Completed, Run
from services.generation.receipts.issuer import Checked
from services.generation.requests.resolution import Resolved
from services.runtime.errors import KolmError
from services.runtime.tracing import Span

_MOST = 2**63  # attributes of spans are signed integers of 64 bits


def request_span(run: Run, model: str, completed: Sequence[Completed], failed: Exception | None) -> Span:
    """The span of a run that the engine has accepted and that has ended: from its arrival until its receipts were
    kept. `failed`: the error instead of the answer.
    """
    resolved, sampling, decision = run.resolved, run.resolved.sampling, run.resolved.decision
    operation = "chat" if resolved.chat else "text_completion"
    completed = sorted(completed, key=lambda each: each.choice)
    cached = max((each.outcome.metrics.cached_prompt_tokens for each in completed), default=None)
    verdicts = [_verdict(each.checked, resolved) for each in completed]
    known: dict[str, str | bool | int | float | Sequence[str] | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "kolm" if resolved.engine is None else resolved.engine.partition("/")[0],
        "gen_ai.request.model": model,
        "gen_ai.request.choice.count": resolved.choices if resolved.choices > 1 else None,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.request.seed": sampling.seed if sampling.seed < _MOST else None,
        "gen_ai.request.stop_sequences": sampling.stop or None,
        "gen_ai.request.stream": run.streamed or None,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_k": sampling.top_k or None,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.response.finish_reasons": [each.outcome.finish_reason for each in completed],
        "gen_ai.response.id": resolved.request_id,
        "gen_ai.response.model": model,
        "gen_ai.response.time_to_first_chunk": _seconds_to_first(run) if run.streamed else None,
        "gen_ai.usage.cache_read.input_tokens": cached,
        "gen_ai.usage.input_tokens": len(resolved.prompt),
        "gen_ai.usage.output_tokens": sum(len(each.outcome.token_ids) for each in completed),
        "kolm.receipt.ids": [each.receipt.receipt_id for each in completed],
        "kolm.receipt.verdicts": verdicts if resolved.verify_inline else None,
        "kolm.method": decision.method,
        "kolm.requested_method": decision.requested_method,
        "kolm.fallback_reason": decision.fallback_reason,
    }
    attributes = {name: value for name, value in known.items() if value is not None}
    return Span(
        f"{operation} {model}", run.arrived, time.time_ns(), attributes, resolved.engine is not None,
        _error(completed, failed), run.trace,
    )  # fmt: skip


def _seconds_to_first(run: Run) -> float | None:
    return None if run.first_token is None else (run.first_token - run.arrived) / 1e9


def _verdict(checked: Checked, resolved: Resolved) -> str:
    """An auditor's word for the result of verification before signing."""
    if checked.identical is None:
        return UNCHECKED if checked.unverified is None else checked.unverified.partition(":")[0]
    if not checked.identical:
        return DEVIATION
    return EXACT if resolved.engine is None else SAME


def _error(completed: Sequence[Completed], failed: Exception | None) -> str | None:
    """The reason that the caller gets, None if the answer is whole or was cancelled."""
    if failed is not None:
        return failed.reason if isinstance(failed, KolmError) else type(failed).__name__
    if any(each.checked.identical is False for each in completed):
        return "SPEC_DECODE_DEVIATION"
    return "GENERATION_FAILED" if any(each.outcome.finish_reason == "error" for each in completed) else None
