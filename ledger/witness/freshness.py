"""The age of a log's newest state, by its cosignatures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ledger.errors import ProofError
from ledger.witness.tlog_policy import Policy

LAST_SECOND = 253_402_300_799
"""The end of the year 9999, and of datetime's and protobuf's times; a witness may claim any second below 2^63."""

_GRACE = timedelta(minutes=5)  # clocks differ
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))


@dataclass(frozen=True, slots=True)
class Freshness:
    """The times behind an age. `now` is the verifier's clock. `vouched_at` is the time when a quorum of witnesses had
    the checkpoint; None without a quorum. `dated_at` is the latest time in the log's documents, None without one: it
    shows when the log stopped, but by the operator's clock.
    """

    now: datetime
    vouched_at: datetime | None = None
    dated_at: datetime | None = None

    @property
    def age(self) -> timedelta | None:
        """The time since `vouched_at`, never below zero; None without a quorum, or with a future time."""
        if self.vouched_at is None or self.vouched_at > self.now + _GRACE:
            return None
        return max(self.now - self.vouched_at, timedelta())

    def check(self, max_age: timedelta) -> None:
        """Raises ProofError if the checkpoint is older than `max_age`, or its age is unknown."""
        if self.age is None or self.age > max_age:
            raise ProofError(f"{self}; at most {_words(max_age)} are allowed")

    def __str__(self) -> str:
        if self.vouched_at is not None:
            moment = f"{self.vouched_at:%Y-%m-%d %H:%M:%S} UTC"
            if self.age is None:
                return f"the newest cosigned checkpoint is dated {moment}, in the future"
            return f"the newest cosigned checkpoint is {_words(self.age)} old ({moment})"
        if self.dated_at is None:
            return "no witness vouches for the age of the log"
        ago = _words(max(self.now - self.dated_at, timedelta()))
        return f"no witness vouches for the age of the log; its newest document is dated {ago} ago"


def quorum_time(policy: Policy, cosigned: Mapping[str, int]) -> datetime | None:
    """The latest time by which the policy has enough cosignatures: no minority can make a log look younger.

    `cosigned` are POSIX seconds by the witness's name in the policy. Without a quorum in the policy, the newest
    cosignature; None if the cosignatures are too few, or missing.
    """
    for time in sorted(set(cosigned.values()), reverse=True):
        if policy.is_met_by([name for name, at in cosigned.items() if at >= time]):
            return moment_of(time)
    return None


def moment_of(seconds: int) -> datetime:
    """The moment of a cosignature in POSIX seconds; the last second of the year 9999 for any later one."""
    return datetime.fromtimestamp(min(seconds, LAST_SECOND), UTC)


def _words(age: timedelta) -> str:
    """The age in its largest unit, rounded down: 3 days, 1 hour."""
    seconds = int(age.total_seconds())
    unit, length = next(((unit, length) for unit, length in _UNITS if seconds >= length), ("second", 1))
    count = seconds // length
    return f"{count} {unit}{'' if count == 1 else 's'}"
