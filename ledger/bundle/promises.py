"""Holding the verifier's own promises against the whole log that a bundle claims to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ledger.audit.fulfilment import Fulfilment
from ledger.bundle.skipped import NothingToCheck
from ledger.encoding.text_forms import parse_timestamp, timestamp
from ledger.errors import ProofError

State = Literal["KEPT", "OPEN", "OVERDUE", "BROKEN"]
"""OPEN: not due yet. OVERDUE: due by the verifier's clock, but the bundle may end before. BROKEN: proof of omission."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a bundle shows the log: `whole`, and until when it is known not to have held more (None: nobody says)."""

    whole: bool
    until: datetime | None

    @classmethod
    def of(cls, whole: bool, latest: str, cosigned: datetime | None) -> Extent:
        """By `latest`, the newest date of the log's documents, and the time that witnesses give its newest tree.

        Timestamps do not count: anybody may have an old tree stamped at any time.
        """
        times = [time for time in (parse_timestamp(latest) if latest else None, cosigned) if time is not None]
        return cls(whole, max(times, default=None))


@dataclass(frozen=True, slots=True)
class JudgedPromise:
    """The state of a promise, by the bundle."""

    found: Fulfilment
    state: State


def judge_promise(found: Fulfilment, now: datetime | None, log: Extent) -> JudgedPromise:
    """`now` is the verifier's clock. A whole log that goes on after `due` without the receipts proves an omission."""
    if found.is_kept:
        return JudgedPromise(found, "KEPT")
    if log.whole and log.until is not None and found.is_due(log.until):
        return JudgedPromise(found, "BROKEN")
    return JudgedPromise(found, "OVERDUE" if now is not None and found.is_due(now) else "OPEN")


def check_promises(judged: Sequence[JudgedPromise], log: Extent) -> str:
    """A finding in words. Raises ProofError for the first promise that is due and not kept."""
    for each in judged:
        if each.state in ("BROKEN", "OVERDUE"):
            raise ProofError(_missing(each, log))
    kept = [each.found for each in judged if each.state == "KEPT"]
    still = f"{len(judged) - len(kept)} not due yet"
    if not kept:
        raise NothingToCheck(still if judged else "no promise was given")
    places = ", ".join(str(index) for found in kept for index in found.entries.values())
    failed = sum(ending == "error" for found in kept for ending in found.endings.values())
    ended = f"; {failed} of the receipts ended by error, without a whole output" if failed else ""
    return f"{len(kept)} kept, by entries {places}{f'; {still}' if len(kept) < len(judged) else ''}{ended}"


def _missing(judged: JudgedPromise, log: Extent) -> str:
    found, promise = judged.found, judged.found.promise
    named = f"request {promise.request_id}: {len(found.missing)} of {promise.choices} receipts, due {promise.due},"
    if not log.whole:
        return f"{named} are not in the bundle; whether the log lacks them takes the whole log"
    said = "nothing" if log.until is None else f"nothing after {timestamp(log.until)}"
    if judged.state == "BROKEN" and log.until is not None:
        return f"{named} are missing from a log that went on to {timestamp(log.until)}: proof of omission"
    return f"{named} are missing by your clock; the log says {said}: get a newer bundle, or the log has stopped"
