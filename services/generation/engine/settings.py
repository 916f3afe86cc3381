"""Bounds of the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """None of these can change a token; hypothesis tests vary them all."""

    max_sequences: int = 32  # running at once
    max_waiting: int = 256  # of one tenant, queued beyond that
    max_rows: int = 256  # rows of a pass: prefill, roots and drafts together
    prefill_rows: int = 128  # of them for prompts while other sequences are decoding
    prefix_caching: bool = True  # whether sequences that begin alike share what was computed
    feature_bytes: int = 1 << 27  # of features kept with cached prefixes
    prefix_share: float | None = None  # of the cache, `BlockPool.resident`; None leaves it as the target made it
