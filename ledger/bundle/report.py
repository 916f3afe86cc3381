"""The verifier's trust, the state of its promises, and the report on a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Literal, Protocol

from ledger.audit.contradiction import Contradiction
from ledger.audit.fulfilment import Fulfilment
from ledger.audit.log_clock import DatedAhead
from ledger.audit.log_verification import Check
from ledger.audit.obligation import Completeness
from ledger.bundle.layout import BundleManifest
from ledger.documents.content import Turn
from ledger.documents.dates import MOST_SKEW_SECONDS
from ledger.documents.halt import HaltState
from ledger.encoding.text_forms import moved, parse_timestamp, timestamp
from ledger.errors import ProofError
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import Checkpoint
from ledger.witness.freshness import Freshness
from ledger.witness.tlog_policy import Policy

NOT_REACHED = "not reached"
"""The finding of a check that did not run because another check failed."""

State = Literal["KEPT", "OPEN", "OVERDUE", "BROKEN"]
"""OPEN: not due yet. OVERDUE: due by the verifier's clock, but the bundle may end before. BROKEN: proof of omission."""


class NothingToCheck(Exception):
    """Raised by a check without anything to check; the message is the reason."""


class NotReached(Exception):
    """Raised by a check if a check that it needs has failed."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The part of the log in a bundle: `whole`, and the time until which the log is known to have held no more entries
    (None: unknown).
    """

    whole: bool
    until: datetime | None

    @classmethod
    def of(cls, whole: bool, latest: str, cosigned: datetime | None) -> Extent:
        """The later of `latest`, the newest date of the log's documents, less the most that a ledger lets them be ahead
        of its clock, and the witnesses' time of its newest tree.

        Timestamps do not count: an old tree can be stamped at any time.
        """
        reached = parse_timestamp(moved(latest, -MOST_SKEW_SECONDS)) if latest else None
        times = [time for time in (reached, cosigned) if time is not None]
        return cls(whole, max(times, default=None))


@dataclass(frozen=True, slots=True)
class JudgedPromise:
    """The state of a promise, by the bundle."""

    found: Fulfilment
    state: State


def judge_promise(found: Fulfilment, now: datetime | None, log: Extent) -> JudgedPromise:
    """Judge a promise; `now` is the verifier's clock. A whole log that continues after `due` without the receipts
    proves an omission.
    """
    if found.is_kept:
        return JudgedPromise(found, "KEPT")
    if log.whole and log.until is not None and found.is_overdue(log.until):
        return JudgedPromise(found, "BROKEN")
    return JudgedPromise(found, "OVERDUE" if now is not None and found.is_overdue(now) else "OPEN")


def check_promises(judged: Sequence[JudgedPromise], log: Extent) -> str:
    """The finding about all promises. Raises ProofError for the first promise that is due and not kept."""
    for each in judged:
        if each.state in ("BROKEN", "OVERDUE"):
            raise ProofError(_missing(each, log))
    kept = [each.found for each in judged if each.state == "KEPT"]
    still = f"{len(judged) - len(kept)} not due yet"
    if not kept:
        raise NothingToCheck(still if judged else "no promise was given")
    places = ", ".join(str(index) for found in kept for index in found.entries.values())
    failed = sum(ending == "error" for found in kept for ending in found.finish_reasons.values())
    ended = f"; {failed} of the receipts ended by error, without a whole output" if failed else ""
    return f"{len(kept)} kept, by entries {places}{f'; {still}' if len(kept) < len(judged) else ''}{ended}"


def _missing(judged: JudgedPromise, log: Extent) -> str:
    found, promise = judged.found, judged.found.promise
    named = f"request {promise.request_id}: {len(found.missing)} of {promise.choices} receipts, due {promise.due},"
    if not log.whole:
        return f"{named} are not in the bundle; only the whole log shows whether it lacks them"
    shown = "nothing" if log.until is None else f"nothing after {timestamp(log.until)}"
    if judged.state == "BROKEN" and log.until is not None:
        return f"{named} are missing from a log that continues to {timestamp(log.until)}: proof of omission"
    return f"{named} are missing by your clock; the log shows {shown}: get a newer bundle, or the log has stopped"


class TextReader(Protocol):
    """The verifier's tokenizer. Its methods raise LedgerError for an unreadable text."""

    @property
    def tokenizer_cid(self) -> str:
        """The tokenizer's identifier, as in receipts."""
        ...

    def prompt(self, sent: str | Sequence[Turn]) -> list[int]:
        """The ids of a text, or of a conversation by the model's chat template."""
        ...

    def text(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> str:
        """The text of an output after its prompt, without special tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Trust:
    """The verifier's keys, policy and clock. None of it ever comes from a bundle.

    `policy` None accepts the log keys among `keys` and needs no witness. `earlier` has checkpoints of the log that the
    verifier got before: the bundle must extend them. `as_of` is the time at which owed replays are counted; None is the
    latest time of log and witnesses. `now` is the verifier's clock: no entry can have been signed later; None uses the
    witnesses alone. `reader` None does not compare the texts of a conversation. `max_unreplayable` is the largest
    number of receipts whose newest verdict is not an answer, `max_age` the largest age of the witnesses' cosignatures;
    None sets no limit. `promises` are promises that servers gave the verifier before answers, well-formed.
    """

    keys: TrustedKeys
    policy: Policy | None = None
    earlier: tuple[bytes, ...] = ()
    as_of: datetime | None = None
    now: datetime | None = None
    reader: TextReader | None = None
    max_unreplayable: int | None = None
    max_age: timedelta | None = None
    promises: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class BundleReport:
    """The result of the checklist. `problem` is the reason of the first failed check, None if none failed. The rest
    describes the entries up to the first failure: witnesses and the times of their cosignatures (POSIX seconds),
    entries by kind, verdicts by outcome, EXACT verdicts of `independent` replays, the number of receipts with an
    unproven numerics profile and of receipts that claim a speedup above their tokens per pass, the state of the halts,
    receipts that defied one (index, index of the halt), entries with future times, verdicts that contradict others of
    the same auditor, the owed replays, the receipts whose newest verdict is no answer (with the entry that had erased
    the content), the age of the log (None without a clock), and the state of the verifier's promises.
    """

    checks: tuple[Check, ...]
    manifest: BundleManifest | None
    checkpoint: Checkpoint | None
    cosigned: Mapping[str, int]
    kinds: Mapping[str, int]
    outcomes: Mapping[str, int]
    independent: int
    unproven: int
    overclaims: int
    halts: HaltState
    defied_halts: tuple[tuple[int, int], ...]
    dated_ahead: DatedAhead
    contradictions: tuple[Contradiction, ...]
    completeness: Completeness | None
    unreplayable: Mapping[int, int | None]
    freshness: Freshness | None
    promises: tuple[JudgedPromise, ...] = ()

    def __str__(self) -> str:
        """A line: verified, or the problem; then the contents."""
        verdict = "verified" if self.ok else f"not verified: {self.problem}"
        held = ", ".join(f"{count} {kind}" for kind, count in {**self.kinds, **self.outcomes}.items() if count)
        return f"{verdict} ({held or 'no entries'}{f'; log of {self.checkpoint.size}' if self.checkpoint else ''})"

    @property
    def problem(self) -> str | None:
        """The first failed check; without one, a check that was not reached, which is no pass."""
        failed = (check.detail for check in self.checks if check.passed is False)
        unreached = (f"check {check.number} was not reached" for check in self.checks if check.detail == NOT_REACHED)
        return next(chain(failed, unreached), None)

    @property
    def ok(self) -> bool:
        return self.problem is None
