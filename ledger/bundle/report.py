"""The verifier's own trust, what became of the promises it was given, and the report that it gets on a bundle."""

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
from ledger.documents.halt import HaltState
from ledger.encoding.text_forms import parse_timestamp, timestamp
from ledger.errors import ProofError
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import Checkpoint
from ledger.witness.freshness import Freshness
from ledger.witness.tlog_policy import Policy

NOT_REACHED = "not reached"
"""The words of a report for a check that did not run because another one failed."""

State = Literal["KEPT", "OPEN", "OVERDUE", "BROKEN"]
"""OPEN: not due yet. OVERDUE: due by the verifier's clock, but the bundle may end before. BROKEN: proof of omission."""


class NothingToCheck(Exception):
    """The message says why."""


class NotReached(Exception):
    """A check that this one needs has failed before."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a bundle shows the log: `whole`, and until when it is known not to have held more (None: nobody says)."""

    whole: bool
    until: datetime | None

    @classmethod
    def of(cls, whole: bool, latest: str, cosigned: datetime | None) -> Extent:
        """The later of `latest`, the newest date of the log's documents, and the witnesses' time of its newest tree.

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


class TextReader(Protocol):
    """The verifier's tokenizer. Its methods raise LedgerError where it cannot read what it is given."""

    @property
    def tokenizer_cid(self) -> str:
        """The tokenizer's identifier, as in receipts."""
        ...

    def prompt(self, sent: str | Sequence[Turn]) -> list[int]:
        """The ids of a text, or those that the model's chat template makes of a conversation."""
        ...

    def earlier_prompt(self, sent: str | Sequence[Turn]) -> list[int]:
        """The same by the rule of older servers, which took markup that a conversation's texts spell for markup."""
        ...

    def text(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> str:
        """The text of an output after its prompt, without special tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Trust:
    """The verifier's own keys, policy and clock. Nothing of this ever comes from a bundle.

    `policy` None accepts the log keys among `keys` and asks for no witness. `earlier` are checkpoints of the log that
    the verifier got at some other time: the bundle must extend them. `as_of` is when owed replays are counted; None is
    the latest time that log and witnesses name. `now` is the verifier's clock: nothing in the log can have been signed
    later. None asks the witnesses alone. `reader` None leaves the texts of a conversation uncompared.
    `max_unreplayable` is how many receipts may have a newest verdict that is not an answer, `max_age` how long ago
    witnesses may have cosigned the checkpoint; None sets no limit. `promises` are those that servers gave the verifier
    before answers, in form.
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
    """The result of the checklist. `problem` is the reason of the first failed check, None where none failed.

    The rest describes the entries up to the first failure: witnesses and the times of their cosignatures (POSIX
    seconds), entries by kind, verdicts by outcome, those EXACT ones of `independent` replays, the number of receipts
    with an unproven numerics profile and of those that claim a speedup above their tokens per pass, the state of the
    halts, receipts that defied one (index, index of the halt), entries that name times to come, verdicts that
    contradict others of the same auditor, the owed replays, the number of receipts whose newest verdict is
    UNREPLAYABLE, how old the log is (None without a clock), what became of the verifier's promises, and how
    many entries a state had verified before.
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
    verified_before: int = 0

    def __str__(self) -> str:
        """A line: what was verified, or what is wrong; then what it holds."""
        verdict = "verified" if self.ok else f"not verified: {self.problem}"
        held = ", ".join(f"{count} {kind}" for kind, count in {**self.kinds, **self.outcomes}.items() if count)
        return f"{verdict} ({held or 'no entries'}{f'; log of {self.checkpoint.size}' if self.checkpoint else ''})"

    @property
    def problem(self) -> str | None:
        """The first failed check; without one, a check that was not reached, which has not passed."""
        failed = (check.detail for check in self.checks if check.passed is False)
        unreached = (f"check {check.number} was not reached" for check in self.checks if check.detail == NOT_REACHED)
        return next(chain(failed, unreached), None)

    @property
    def ok(self) -> bool:
        return self.problem is None
