"""What a verifier of a bundle brings along, and what it gets back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from ledger.audit.log_verification import Check
from ledger.audit.obligation import Completeness
from ledger.bundle.layout import BundleManifest
from ledger.documents.halt import HaltState
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import Checkpoint
from ledger.witness.tlog_policy import Policy

TimestampCheck = Callable[[bytes, bytes], datetime]
"""(response, stamped bytes) → the time that the authority vouches for. Raises LedgerError."""


@dataclass(frozen=True, slots=True)
class Trust:
    """What the verifier brings along. Nothing of this ever comes from a bundle.

    `policy` None accepts the log keys among `keys` and asks for no witness. `earlier` are checkpoints of the log that
    the verifier got at some other time: the bundle must extend them. `as_of` is when owed replays are counted; None is
    the latest time that log, witnesses and timestamps name. `check_timestamp` None leaves timestamps unchecked.
    `now` is the verifier's clock: nothing in the log can have been signed later. None asks the witnesses alone.
    """

    keys: TrustedKeys
    policy: Policy | None = None
    earlier: tuple[bytes, ...] = ()
    as_of: datetime | None = None
    check_timestamp: TimestampCheck | None = None
    now: datetime | None = None


@dataclass(frozen=True, slots=True)
class BundleReport:
    """What was found. `problem` is the first failed check's reason, None where none failed.

    The rest describes what was read up to there: who cosigned when (POSIX seconds), entries by kind, verdicts by
    outcome, how many receipts say that their numerics profile is unproven, the state of the halts, receipts that defied
    one (index, index of the halt), what is owed.
    """

    checks: tuple[Check, ...]
    manifest: BundleManifest | None
    checkpoint: Checkpoint | None
    cosigned: Mapping[str, int]
    kinds: Mapping[str, int]
    outcomes: Mapping[str, int]
    unproven: int
    halts: HaltState
    defied_halts: tuple[tuple[int, int], ...]
    completeness: Completeness | None

    @property
    def problem(self) -> str | None:
        return next((check.detail for check in self.checks if check.passed is False), None)

    @property
    def ok(self) -> bool:
        return self.problem is None
