"""The object that `kolm generate --json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from services.cli.views.documents import envelope_json
from services.client.completion import Choice, Completion, Receipt, Resolved


def completion_json(completion: Completion) -> dict[str, Any]:
    """The first choice's members at the top, all choices under `choices` where there are several."""
    value = _choice(completion.choices[0]) | {
        "usage": asdict(completion.usage) | {"total_tokens": completion.usage.total_tokens},
        "metrics": asdict(completion.metrics),
        "resolved": _resolved(completion.resolved),
    }
    if len(completion.choices) > 1:
        value["choices"] = [
            {"index": choice.index} | _choice(choice) | {"metrics": asdict(choice.metrics)}
            for choice in completion.choices
        ]
    return value


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "receipt": _receipt(choice.receipt),
        "ledger_index": None if choice.receipt is None else choice.receipt.ledger_index,
    }


def _receipt(receipt: Receipt | None) -> dict[str, Any] | None:
    if receipt is None:
        return None
    return {"receipt_id": receipt.receipt_id, "pending": receipt.pending, **envelope_json(receipt.envelope)}


def _resolved(resolved: Resolved) -> dict[str, Any]:
    value = asdict(resolved)
    bias = value["sampling"].pop("logit_bias", None)
    if bias:
        value["sampling"]["logit_bias"] = {str(token): number for token, number in bias.items()}
    return value
