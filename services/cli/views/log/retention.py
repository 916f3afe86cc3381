"""Retention policies as people and programs read them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.markup import escape

from services.cli.jobs.retention import Policy, RetentionState
from services.cli.terminal.output import table


def set_view(policy: Policy) -> RenderableType:
    return f"entry {policy.index}: contents of {_whose(policy.tenant)} are kept {_how_long(policy.days)}"


def state_json(state: RetentionState) -> dict[str, Any]:
    return {
        "policies": [asdict(policy) for policy in state.policies],
        "expiries": [{"index": index} | expiry.to_document() for index, expiry in state.expiries],
    }


def state_view(state: RetentionState) -> RenderableType:
    if not state.policies:
        return "no policy: contents are kept without limit"
    erased = {expiry.tenant: (index, expiry) for index, expiry in state.expiries}
    shown = table("entry", "tenant", "kept", "set", "erased so far", right=("entry",))
    for policy in state.policies:
        index, expiry = erased.get(policy.tenant, (None, None))
        last = "nothing" if expiry is None else f"what was issued before {expiry.issued_before} (entry {index})"
        row = (str(policy.index), escape(_whose(policy.tenant)), _how_long(policy.days), policy.issued_at, last)
        shown.add_row(*row)
    return shown


def _whose(tenant: str | None) -> str:
    return "all without one of their own" if tenant is None else tenant


def _how_long(days: int | None) -> str:
    return "without limit" if days is None else f"{days} day{'' if days == 1 else 's'}"
