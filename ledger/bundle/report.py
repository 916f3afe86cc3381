"""The verifier's own trust, and the report that it gets on a bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

from ledger.audit.log_verification import Check
from ledger.audit.obligation import Completeness
from ledger.bundle.layout import BundleManifest
from ledger.bundle.promises import JudgedPromise
from ledger.bundle.skipped import NOT_REACHED
from ledger.bundle.text_check import TextReader
from ledger.documents.halt import HaltState
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import Checkpoint
from ledger.witness.freshness import Freshness
from ledger.witness.tlog_policy import Policy

TimestampCheck = Callable[[bytes, bytes], datetime]
"""(response, stamped bytes) → the time that the authority vouches for. Raises LedgerError."""


@dataclass(frozen=True, slots=True)
class Trust:
    """The verifier's own keys, policy and clock. Nothing of this ever comes from a bundle.

    `policy` None accepts the log keys among `keys` and asks for no witness. `earlier` are checkpoints of the log that
    the verifier got at some other time: the bundle must extend them. `as_of` is when owed replays are counted; None is
    the latest time that log, witnesses and timestamps name. `check_timestamp` None leaves timestamps unchecked.
    `now` is the verifier's clock: nothing in the log can have been signed later. None asks the witnesses alone.
    `reader` None leaves the texts of a conversation uncompared. `max_unreplayable` is how many receipts may
    have UNREPLAYABLE as their newest verdict, `max_age` how long ago witnesses may have cosigned the checkpoint; None
    sets no limit. `promises` are those that servers gave the verifier before answers, in form.
    """

    keys: TrustedKeys
    policy: Policy | None = None
    earlier: tuple[bytes, ...] = ()
    as_of: datetime | None = None
    check_timestamp: TimestampCheck | None = None
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
    halts, receipts that defied one (index, index of the halt), the owed replays, the number of receipts whose newest
    verdict is UNREPLAYABLE, how old the log is (None without a clock), and what became of the verifier's promises.
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
    completeness: Completeness | None
    unreplayable: Mapping[int, int | None]
    freshness: Freshness | None
    promises: tuple[JudgedPromise, ...] = ()

    def __str__(self) -> str:
        """A line: what was verified, or what is wrong; then what it holds."""
        verdict = "verified" if self.ok else f"not verified: {self.problem}"
        held = ", ".join(f"{count} {kind}" for kind, count in {**self.kinds, **self.outcomes}.items() if count)
        return f"{verdict} ({held or 'no entries'}{f'; log of {self.checkpoint.size}' if self.checkpoint else ''})"

    @property
    def problem(self) -> str | None:
        """A check that was not reached is none that passed: it is the problem where none has failed."""
        failed = (check.detail for check in self.checks if check.passed is False)
        unreached = (f"check {check.number} was not reached" for check in self.checks if check.detail == NOT_REACHED)
        return next(chain(failed, unreached), None)

    @property
    def ok(self) -> bool:
        return self.problem is None
