"""Checks the log's signed answer to a promise, offline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ledger.documents.promise import Promise, open_promise
from ledger.documents.promise_answer import PAYLOAD_TYPE, PromiseAnswer, open_answer
from services.cli.failures.exits import UsageError
from services.cli.jobs.receipts.bundle_trust import Sources, own_trust

_LONGEST = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """A promise, and what the log has signed about it."""

    promise: Promise
    answer: PromiseAnswer

    @property
    def broken(self) -> bool:
        return self.answer.breaks(self.promise)


def read_answer(path: Path) -> bytes | None:
    """The bytes of an answer; None for anything else."""
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST)
    except OSError:
        return None
    return data if data[:1] == b"{" and PAYLOAD_TYPE.encode() in data else None


def check_answer(data: bytes, sources: Sources) -> Answered:
    """Raises LedgerError for a signature that does not hold and for another promise, UsageError without one."""
    trust = own_trust(sources)
    if len(trust.promises) != 1:
        raise UsageError("which promise is this the answer to?", "name it with --promise")
    (envelope,) = trust.promises
    return Answered(open_promise(envelope, trust.keys), open_answer(data, envelope, trust.keys))
