"""Finding a receipt and checking, offline, that it was signed and that the signed log holds it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

from ledger.audit.log_verification import verify_appended, verify_receipt
from ledger.errors import LedgerError
from services.cli.failures.exits import Missing, UsageError
from services.cli.jobs.trust import load_trusted
from services.client import LedgerClient
from services.client.ledger.log import ReceiptDetails
from services.client.ledger.receipt_checks import entry_of

_BEGINNING = re.compile(r"0[0-9a-f]{7}[0-9a-f-]*", re.IGNORECASE)
_ID_LENGTH, _TIME_DIGITS = 36, 12
_LONGEST_REQUEST, _ROUNDING = timedelta(days=1), timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Proof:
    """`signature` and `inclusion` are None if there were no keys to check them with; `problem` says what failed."""

    signature: bool | None
    inclusion: bool | None
    tree_size: int
    problem: str | None = None

    @property
    def ok(self) -> bool:
        return self.problem is None


def find(ledger: LedgerClient, name: str) -> ReceiptDetails:
    """The receipt with this id, the only one whose id begins so, or the one at this entry.

    Raises NotFound, Missing, UsageError for an entry that is no receipt and for what several ids begin with.
    """
    if _is_beginning(name):
        return ledger.receipt(_only_id(ledger, name))
    if not name.isdecimal():
        return ledger.receipt(name)
    found = list(ledger.receipts(min_index=int(name), max_index=int(name)))
    if not found:
        raise UsageError(f"entry {name} is a {ledger.entry(int(name)).kind}, not a receipt")
    return ledger.receipt(found[0].receipt_id)


def _is_beginning(name: str) -> bool:
    """Whether it is eight digits or more of an id, and not all of it. Until the year 2527 ids begin with 0; an entry's
    index does not, or is shorter.
    """
    return _BEGINNING.fullmatch(name) is not None and len(name) < _ID_LENGTH


def _only_id(ledger: LedgerClient, beginning: str) -> str:
    earliest, latest = _times(beginning)
    listed = ledger.receipts(start_time=earliest, end_time=latest)
    found = list(islice((each.receipt_id for each in listed if each.receipt_id.startswith(beginning.lower())), 2))
    if not found:
        raise Missing(f"no receipt's id begins with {beginning}", "`kolm receipts list` shows the newest")
    if len(found) > 1:
        raise UsageError(
            f"the ids of several receipts begin with {beginning}: {found[0]}, {found[1]}", "give more of it"
        )
    return found[0]


def _times(beginning: str) -> tuple[datetime, datetime]:
    """When receipts with such ids were issued: a UUIDv7 begins with 48 bits of milliseconds. The id is drawn as the
    request is taken, and the receipt issued once its output has ended.
    """
    digits = beginning.replace("-", "")[:_TIME_DIGITS]
    first, last = (int(digits.ljust(_TIME_DIGITS, fill), 16) / 1000 for fill in "0f")
    return datetime.fromtimestamp(first, UTC) - _ROUNDING, datetime.fromtimestamp(last, UTC) + _LONGEST_REQUEST


def prove(details: ReceiptDetails, directory: Path) -> Proof:
    """Check the signature, then that the entry is in the tree of a checkpoint that the log signed."""
    proof = details.inclusion_proof
    tree_size = 0 if proof is None else proof.tree_size
    if not directory.is_dir():
        return Proof(None, None, tree_size)
    trusted = load_trusted(directory)
    envelope = details.receipt.envelope
    signed = _problem(lambda: verify_receipt(envelope, trusted))
    if signed is not None:
        return Proof(False, None, tree_size, signed)
    if proof is None:
        return Proof(True, False, tree_size, "the ledger shows no proof that the log holds it")
    hashes, log_keys = proof.hashes, trusted.keys("log")
    included = _problem(
        lambda: verify_appended(envelope, entry_of(details.receipt).to_bytes(), hashes, details.checkpoint, log_keys)
    )
    return Proof(True, included is None, tree_size, included)


def _problem(check: Callable[[], object]) -> str | None:
    try:
        check()
    except LedgerError as error:
        return str(error)
    return None
