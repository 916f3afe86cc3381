"""Holds a promise in a file against the log."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from ledger.documents.promise import open_promise
from services.cli.jobs.receipts.promise_file import read_promise_file
from services.cli.jobs.trust import load_trusted
from services.client import LedgerClient
from services.client.ledger.promised import Promised, look_up
from services.client.ledger.remembered import RememberedCheckpoint
from services.client.ledger.verified import VerifiedLedger


def check_promise(ledger: LedgerClient, file: Path, trusted: Path, remember: Path | None, now: datetime) -> Promised:
    """The state of the promise in `file`. `now` is the verifier's own clock.

    Raises UsageError without a promise or keys, LedgerError for a wrong signature or proof, KolmError.
    """
    keys, envelope = load_trusted(trusted), read_promise_file(file)
    verified = VerifiedLedger(ledger, keys, RememberedCheckpoint(remember))
    return look_up(verified, open_promise(envelope, keys), now, envelope)
