"""The base that the auditor's own engine loads, and how; settings name it before transformers is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The base to load, with the adapters (directories by name) that receipts may name.

    `context_length` in tokens, `cache_dtype` and `arithmetic` are those of the audited server where they are not its
    defaults. `threads` of a pass; None is as many as there are CPUs.
    """

    model: Path
    adapters: Mapping[str, Path] = field(default_factory=dict)
    context_length: int | None = None
    cache_dtype: str | None = None
    arithmetic: str | None = None
    threads: int | None = None
