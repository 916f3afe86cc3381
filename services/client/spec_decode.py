"""How a caller asks for speculation, as published."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lookahead:
    """Shape of the lookahead drafter: window W, n-gram N, guesses G; None leaves one to the server."""

    window: int | None = None
    ngram: int | None = None
    guesses: int | None = None


@dataclass(frozen=True, slots=True)
class Eagle3:
    """Bounds of eagle3's draft trees: children of a node (1 drafts chains), tokens of a draft; None leaves one to the
    server.
    """

    tree_width: int | None = None
    tree_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class SpecDecodeConfig:
    """How to speculate; it changes how fast tokens come, never which ones. None leaves a choice to the server.

    `method` is auto, off, lookahead, eagle3, rest or draft. `eagle_head` is `cidv1:sha256:…` or `name@sha256:<prefix>`.
    `k` is the draft depth in tokens. `accept_threshold` is sent as it is and the server takes 0.0 only: anything else
    would be lossy. `verify` is "sampled" or "inline" (replayed before the receipt is signed).
    """

    method: str | None = None
    eagle_head: str | None = None
    k: int | None = None
    accept_threshold: float | None = None
    verify: str | None = None
    lookahead: Lookahead | None = None
    eagle3: Eagle3 | None = None
