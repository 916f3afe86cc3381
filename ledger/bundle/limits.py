"""The limits that a verifier sets: how many replays may have been impossible, and how old the log may be."""

from __future__ import annotations

from collections.abc import Mapping

from ledger.audit.obligation import Completeness
from ledger.bundle.fold import BundleFold
from ledger.bundle.report import Trust
from ledger.bundle.skipped import NothingToCheck
from ledger.documents.audit import EXACT
from ledger.errors import ProofError
from ledger.witness.freshness import Freshness

_SHOWN = 5  # entries that a line names


def check_unreplayable(fold: BundleFold, trust: Trust) -> str:
    """A finding in words. Raises ProofError for more receipts than allowed whose newest verdict is UNREPLAYABLE."""
    count, judged = len(fold.unreplayable), sum(fold.outcomes_by_kind.values())
    found = f"{count} receipts could not be replayed, which is no pass{erased_in_words(fold.unreplayable)}"
    if trust.max_unreplayable is None:
        raise NothingToCheck(f"{found}; no limit was set")
    if count > trust.max_unreplayable:
        raise ProofError(f"{found}: first that in entry {min(fold.unreplayable)}; {trust.max_unreplayable} are allowed")
    if not judged:
        raise NothingToCheck("the bundle holds no verdict")
    if not count:
        return f"all {judged} judged receipts were replayed"
    return f"{count} of {judged} judged receipts could not be replayed{erased_in_words(fold.unreplayable)}"


def erased_in_words(unreplayable: Mapping[int, int | None]) -> str:
    """Which entries erased the content of how many of these receipts before they were replayed."""
    erasing = [entry for entry in unreplayable.values() if entry is not None]
    if not erasing:
        return ""
    places = sorted(set(erasing))
    shown = ", ".join(map(str, places[:_SHOWN])) + (", …" if len(places) > _SHOWN else "")
    return f" ({len(erasing)} erased by {'entry' if len(places) == 1 else 'entries'} {shown})"


def check_age(freshness: Freshness | None, trust: Trust) -> str:
    """A finding in words. Raises ProofError for a log that is older than allowed."""
    if freshness is None:
        raise NothingToCheck("the verifier has no clock")
    if trust.max_age is None:
        raise NothingToCheck(f"{freshness}; no limit was set")
    freshness.check(trust.max_age)
    return str(freshness)


def owed_in_words(found: Completeness) -> str:
    """The verdicts on sampled receipts, those that are still owed, and the time that it was judged by."""
    verdicts = ", ".join(f"{count} {outcome}" for outcome, count in found.outcomes.items() if count) or "no verdict yet"
    whose = f"; {found.independent} EXACT by an engine of the auditor's own" if found.outcomes[EXACT] else ""
    return f"{verdicts}{whose}; {found.owed} owed and in time; as of {found.as_of}"
