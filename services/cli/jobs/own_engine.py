"""The engine that an audit computes with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.auditor.replays.engine_plan import EnginePlan
from services.cli.exits import UsageError


def own_engine(
    model: Path | None,
    adapters: Sequence[str],
    context_length: int | None,
    cache_dtype: str | None,
    arithmetic: str | None,
    *,
    by_server: bool,
) -> EnginePlan | None:
    """None where a generation service is to be asked instead, though a model may be known from the environment.

    Raises UsageError where there is neither.
    """
    if model is None and not by_server:
        hint = "--model computes here, with the same weights; --by-server asks the audited server, and believes it"
        raise UsageError("expected --model or --by-server", hint)
    return None if by_server else engine_plan(model, adapters, context_length, cache_dtype, arithmetic)


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
