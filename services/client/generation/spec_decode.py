"""A caller's wishes for speculation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.client.generation.mapped import mapped


@dataclass(frozen=True, slots=True)
class SpecDecodeConfig:
    """How to speculate; it changes how fast tokens come, never which ones. None leaves a choice to the server.

    `method` is auto, off or one of `ModelInfo.draft_methods`, which lists their `parameters`, too. `eagle_head` is
    `cidv1:sha256:…` or `name@sha256:<prefix>`.
    `k` is the draft depth in tokens. `accept_threshold` is sent as it is and the server takes 0.0 only: anything else
    would be lossy. `verify` is "sampled" or "inline" (replayed before the receipt is signed).
    """

    method: str | None = None
    eagle_head: str | None = None
    k: int | None = None
    accept_threshold: float | None = None
    verify: str | None = None
    parameters: Mapping[str, int] = field(default_factory=dict)


def as_config(given: object) -> SpecDecodeConfig | None:
    """None is the server's choice, a mapping has the fields of a SpecDecodeConfig. Raises InvalidArgument."""
    return None if given is None else mapped(SpecDecodeConfig, given, "spec_decode")
