"""The serving engine with speculation off, asked again over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ledger.documents.content import Content
from ledger.documents.engine_profile import EngineProfile
from ledger.documents.receipt import Receipt
from services.auditor.audit_error import CannotReplay, EngineAway
from services.auditor.examination import OPEN_ENDED
from services.auditor.foreign_judge import Comparison
from services.auditor.own_engine import request_of
from services.generation.engine.events import Outcome
from services.generation.engine.request import MAX_LOGPROBS, EngineError, EngineFull, EngineRequest, EngineStopped
from services.generation.remote.again import PlainEngine
from services.generation.remote.answer import UpstreamError
from services.generation.remote.dialects import About
from services.generation.remote.difference import (
    COPIES,
    after,
    first_difference,
    goes_on,
    incomparable,
    likely_at,
    may_be_rounding,
    unsteady,
)
from services.generation.remote.upstream import KeyRefused, UpstreamDown
from services.runtime.setting_kind import key_in

_T = TypeVar("_T")

_UNSTEADY = "with speculation off, the engine differs from itself"
_EXCUSED = 4
"""Differences without a proof after which the rest of an output is compared: each takes up to seven requests."""


class PlainUpstream:
    """An implementation of `services.auditor.foreign_judge.Plain`."""

    def __init__(self, engine: str, url: str, key_file: Path | None = None) -> None:
        """Raises ValueError for a key file without a usable key."""
        self.engine = engine
        self._plain = PlainEngine(engine, url, None if key_file is None else key_in(key_file))

    def about(self) -> About:
        return _asked(self._plain.about)

    def held_against(self, receipt: Receipt, content: Content, profile: EngineProfile) -> Comparison:
        if receipt.adapter_cid is not None:
            raise CannotReplay("the auditor does not know the engine's name of the adapter")
        request = replace(request_of(receipt, content), reuse=profile.reuses_prefixes)
        served, begun = content.output_token_ids, 0
        found = first = self._compared(receipt, request, served, profile)
        for _ in range(_EXCUSED):
            if found.position is None or found.unstable is None or not goes_on(profile, request.sampling):
                break
            begun += found.position + 1
            if begun >= len(served):
                break
            found = self._compared(receipt, after(request, served[:begun]), served[begun:], profile)
        if found.position is None or found.unstable is not None:
            return first
        return replace(found, position=begun + found.position)

    def _compared(
        self, receipt: Receipt, request: EngineRequest, served: tuple[int, ...], profile: EngineProfile
    ) -> Comparison:
        """`served`, an output or the rest of one, with the answers to `request`."""
        first = _asked(lambda: self._plain.again(request))
        position = _difference(receipt, served, first)
        if position is None:
            return Comparison()
        reason = incomparable(profile, request.sampling, receipt.prompt.cached_tokens or 0)
        if reason is not None:
            return Comparison(position, unstable=reason)
        alone = _asked(lambda: self._plain.again(request))
        if unsteady(profile, (first, alone, *_asked(lambda: self._plain.together(request, COPIES))), position):
            return Comparison(position, unstable=_UNSTEADY)
        likely = self._likely(request, position, first)
        if likely is None:
            return Comparison(position, unstable=_UNSTEADY)
        ours, theirs = (ids[position] if position < len(ids) else None for ids in (served, first.token_ids))
        if ours is None or theirs is None or ours == theirs:
            return Comparison(position, ours, theirs)
        reason = may_be_rounding(profile, request.sampling, likely, ours, theirs)
        return Comparison(position, ours, theirs, likely.get(ours), likely.get(theirs), reason)

    def _likely(self, request: EngineRequest, position: int, first: Outcome) -> dict[int, float] | None:
        """The log-probabilities that the engine reports at a position; {} if it refuses, None if its answer changes."""
        asked = replace(request, sampling=replace(request.sampling, logprobs=MAX_LOGPROBS))
        try:
            return likely_at(_asked(lambda: self._plain.logprobs(asked)), position, first.token_ids)
        except CannotReplay:
            return {}


def _difference(receipt: Receipt, served: tuple[int, ...], again: Outcome) -> int | None:
    """The first position that differs; the last position if only the finish reasons differ."""
    place = first_difference(served, again.token_ids)
    ended = receipt.output.finish_reason
    if place is None and ended not in OPEN_ENDED and ended != again.finish_reason:
        return len(served) - 1
    return place


def _asked(ask: Callable[[], _T]) -> _T:
    """The result of `ask`. Raises CannotReplay, and EngineAway if the same request may succeed later."""
    try:
        return ask()
    except (UpstreamDown, KeyRefused, EngineFull, EngineStopped) as error:
        raise EngineAway(f"the engine does not answer now: {error}") from error
    except (UpstreamError, EngineError) as error:
        raise CannotReplay(f"the engine does not answer the request: {error}") from error
