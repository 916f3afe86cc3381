"""The serving engine with speculation off, asked again over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from services.auditor.audit_error import CannotReplay, EngineAway
from services.auditor.examination import OPEN_ENDED
from services.auditor.foreign_judge import Comparison
from services.auditor.own_engine import request_of
from services.generation.engine.events import Outcome
from services.generation.engine.request import MAX_LOGPROBS, EngineError, EngineRequest
from services.generation.remote.again import PlainEngine
from services.generation.remote.dialects import UpstreamError
from services.generation.remote.upstream import UpstreamDown
from services.runtime.setting_kind import key_in

_T = TypeVar("_T")


class PlainUpstream:
    """An implementation of `services.auditor.foreign_judge.Plain`."""

    def __init__(self, engine: str, url: str, key_file: Path | None = None) -> None:
        """Raises ValueError for a key file without a usable key."""
        self._plain = PlainEngine(engine, url, None if key_file is None else key_in(key_file))

    def name(self) -> str:
        return _asked(self._plain.name)

    def held_against(self, receipt: Receipt, content: Content) -> Comparison:
        if receipt.adapter_cid is not None:
            raise CannotReplay("the auditor does not know the engine's name of the adapter")
        request, served = request_of(receipt, content), content.output_token_ids
        first = _asked(lambda: self._plain.again(request))
        position = _difference(receipt, served, first)
        if position is None:
            return Comparison()
        second = _asked(lambda: self._plain.again(request))
        if (second.token_ids, second.finish_reason) != (first.token_ids, first.finish_reason):
            return Comparison(position, stable=False)
        ours, theirs = (ids[position] if position < len(ids) else None for ids in (served, first.token_ids))
        likely = self._likely(request, position, first)
        return Comparison(position, ours, theirs, likely.get(ours), likely.get(theirs))

    def _likely(self, request: EngineRequest, position: int, first: Outcome) -> dict[int | None, float]:
        """The log-probabilities at a position that the engine reports. They decide nothing, since an engine may compute
        otherwise if it is asked for them.
        """
        asked = replace(request, sampling=replace(request.sampling, logprobs=MAX_LOGPROBS))
        try:
            found = _asked(lambda: self._plain.logprobs(asked))
        except CannotReplay:
            return {}
        if [each.token_id for each in found[:position]] != list(first.token_ids[:position]) or len(found) <= position:
            return {}
        return {**dict(found[position].top), found[position].token_id: found[position].logprob}


def _difference(receipt: Receipt, served: tuple[int, ...], again: Outcome) -> int | None:
    """The first position that differs; the last position if only the finish reasons differ."""
    pairs = enumerate(zip_longest(served, again.token_ids))
    place = next((position for position, (left, right) in pairs if left != right), None)
    ended = receipt.output.finish_reason
    if place is None and ended not in OPEN_ENDED and ended != again.finish_reason:
        return len(served) - 1
    return place


def _asked(ask: Callable[[], _T]) -> _T:
    """The result of `ask`. Raises CannotReplay, and EngineAway if the engine is away."""
    try:
        return ask()
    except UpstreamDown as error:
        raise EngineAway(f"the engine is away: {error}") from error
    except (UpstreamError, EngineError) as error:
        raise CannotReplay(f"the engine does not answer the request: {error}") from error
