"""Finding a receipt and checking, offline, that it was signed and that the signed log holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ledger.audit.log_verification import verify_appended, verify_receipt
from ledger.errors import LedgerError
from services.cli.exits import UsageError
from services.cli.jobs.trust import load_trusted
from services.client import LedgerClient
from services.client.log import ReceiptDetails
from services.client.receipt_checks import entry_of


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
    """The receipt with this id or entry index. Raises NotFound, UsageError for an entry that is no receipt."""
    if not name.isdecimal():
        return ledger.receipt(name)
    found = list(ledger.receipts(min_index=int(name), max_index=int(name)))
    if not found:
        raise UsageError(f"entry {name} is a {ledger.entry(int(name)).kind}, not a receipt")
    return ledger.receipt(found[0].receipt_id)


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
