"""The engine that an audit computes with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.auditor.replays.engine_plan import EnginePlan
from services.cli.exits import UsageError


def engine_plan(
    model: Path | None,
    adapters: Sequence[str],
    context_length: int | None,
    cache_dtype: str | None,
    arithmetic: str | None,
) -> EnginePlan:
    """Raises UsageError without a model, or for an adapter without a name."""
    if model is None:
        raise UsageError("expected --model: the base that the receipt names, with the same values")
    pairs = [each.partition("=") for each in adapters]
    if wrong := [each for each in pairs if not all(each)]:
        raise UsageError(f"--adapter: expected NAME=DIR of an adapter in peft's layout, got {''.join(wrong[0])}")
    return EnginePlan(model, {name: Path(folder) for name, _, folder in pairs}, context_length, cache_dtype, arithmetic)
