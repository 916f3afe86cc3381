"""Receipts found, proven, and written to files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.errors import LedgerError, ProofError
from ledger.log.receipt_filter import ReceiptFilter
from services.cli.frame import exits
from services.cli.frame.exits import Failed, UsageError
from services.cli.frame.options import MOST_ENTRIES, ledger_at
from services.cli.frame.process import awaited, unless_interrupted
from services.client.errors import KolmError, NotFound
from services.client.generation.completion import Receipt
from services.client.generation.request import Message
from services.client.ledger.ledger import LedgerClient, newest_receipts
from services.client.ledger.log import ReceiptDetails, ReceiptEntry

if TYPE_CHECKING:
    from ledger.bundle.receipt_file import Turns
    from ledger.keys.signer import Signer
    from ledger.keys.trusted_keys import TrustedKeys
    from ledger.tree.tlog_proof import TlogProof

_BEGINNING = re.compile(r"0[0-9a-f]{7}[0-9a-f-]*", re.IGNORECASE)
_ID_LENGTH, _TIME_DIGITS = 36, 12
_LONGEST_REQUEST, _ROUNDING = timedelta(days=1), timedelta(seconds=1)


_PATIENCE = 10.0  # seconds in which a receipt on its way should have arrived


@dataclass(frozen=True, slots=True)
class Proof:
    """`signature` and `inclusion` are None without keys to check them; `problem` is the failure."""

    signature: bool | None
    inclusion: bool | None
    tree_size: int
    problem: str | None = None

    @property
    def ok(self) -> bool:
        return self.problem is None


def find(ledger: LedgerClient, name: str) -> ReceiptDetails:
    """The receipt with this id, with the only id that begins so, or at this entry.

    Raises NotFound, UsageError for an entry of another kind and for the beginning of several ids.
    """
    if _is_beginning(name):
        return ledger.receipt(_only_id(ledger, name))
    if not name.isdecimal() or len(name) > len(str(MOST_ENTRIES)):
        return ledger.receipt(name)
    found = list(ledger.receipts(ReceiptFilter(min_index=int(name), max_index=int(name))))
    if not found:
        raise UsageError(f"entry {name} is a {ledger.entry(int(name)).kind}, not a receipt")
    return ledger.receipt(found[0].receipt_id)


def _is_beginning(name: str) -> bool:
    """Whether a name is eight or more digits of an id, but not all of it. Until the year 2527 ids begin with 0; an
    index does not, or is shorter.
    """
    return _BEGINNING.fullmatch(name) is not None and len(name) < _ID_LENGTH


def _only_id(ledger: LedgerClient, beginning: str) -> str:
    earliest, latest = _times(beginning)
    listed = ledger.receipts(ReceiptFilter(start_time=earliest, end_time=latest))
    found = list(islice((each.receipt_id for each in listed if each.receipt_id.startswith(beginning.lower())), 2))
    match found:
        case []:
            raise exits.NotFound(f"no receipt's id begins with {beginning}", "`kolm receipts list` shows the newest")
        case [one]:
            return one
    raise UsageError(f"the ids of several receipts begin with {beginning}: {', '.join(found)}", "give more of it")


def _times(beginning: str) -> tuple[datetime, datetime]:
    """Bounds of the issue time of such ids: a UUIDv7 begins with 48 bits of milliseconds. The id is drawn when the
    request arrives, the receipt issued when its output has ended.
    """
    digits = beginning.replace("-", "")[:_TIME_DIGITS]
    first, last = (int(digits.ljust(_TIME_DIGITS, fill), 16) / 1000 for fill in "0f")
    return datetime.fromtimestamp(first, UTC) - _ROUNDING, datetime.fromtimestamp(last, UTC) + _LONGEST_REQUEST


def prove(details: ReceiptDetails, directory: Path) -> Proof:
    """Check the signature, then that the entry is in the tree of a checkpoint that the log signed."""
    from ledger.audit.log_verification import verify_appended, verify_receipt
    from services.cli.trust import load_trusted

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
        return Proof(True, False, tree_size, "the ledger sent no proof that the log holds it")
    hashes, log_keys = proof.hashes, trusted.keys("log")
    included = _problem(
        lambda: verify_appended(envelope, details.receipt.entry.to_bytes(), hashes, details.checkpoint, log_keys)
    )
    return Proof(True, included is None, tree_size, included)


def _problem(check: Callable[[], object]) -> str | None:
    try:
        check()
    except LedgerError as error:
        return str(error)
    return None


def newest(ledger: LedgerClient, narrow: ReceiptFilter, limit: int) -> Sequence[ReceiptEntry]:
    """The newest matching receipts, the newest last, as the ledger lists them, unproven."""
    return newest_receipts(ledger.receipts, narrow, ledger.checkpoint().tree_size, limit).receipts[::-1]


def newest_proven(
    ledger: LedgerClient, narrow: ReceiptFilter, limit: int, trusted: Path, remember: Path | None, *, complete: bool
) -> tuple[Sequence[ReceiptEntry], int]:
    """The newest matching receipts, proven to be in the log, and the size of its tree. If `complete`, also proven to be
    the newest. Raises UsageError without keys to check them, LedgerError.
    """
    from services.cli.trust import load_trusted
    from services.client.ledger.verified import RememberedCheckpoint, VerifiedLedger

    proving = VerifiedLedger(ledger, load_trusted(trusted), RememberedCheckpoint(remember))
    size = proving.head().size
    found = newest_receipts(partial(proving.receipts, complete=complete), narrow, size, limit)
    return found.receipts[::-1], proving.head().size


def export_receipt(ledger: LedgerClient, named: str, path: Path) -> str:
    """Write the file, readable for its owner only; returns the receipt's id.

    Raises NotFound without content, UsageError for an existing file, KolmError, LedgerError.
    """
    from ledger.bundle.receipt_file import ReceiptFile
    from ledger.keys.envelope import Envelope
    from services.cli.ledger.export import proof_of

    receipt = find(ledger, named).receipt
    details = ledger.receipt(receipt.receipt_id, include_content=True)
    if (content := details.content) is None:
        raise exits.NotFound(
            f"the ledger keeps no content of {receipt.receipt_id}", "it was erased, or never sent to the ledger"
        )
    file = ReceiptFile(Envelope.from_bytes(receipt.envelope), content, proof=proof_of(ledger, receipt.index))
    write_new(path, file.to_bytes())
    return receipt.receipt_id


def write_new(path: Path, data: bytes) -> None:
    """Write a file, mode 0600, whole or not at all. Raises UsageError for an existing file, Failed on a full disk."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UsageError(f"{path} exists already") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise Failed(f"cannot write {path}: {error.strerror}") from None


def save(path: Path, receipt: Receipt, sent: str | Sequence[Message], ledger: str) -> str | None:
    """Write a receipt file, mode 0600, with the proof of its entry; returns None, or the reason why it has no proof.

    Raises Failed, or UsageError for an existing file.
    """
    from ledger.bundle.receipt_file import ReceiptFile
    from ledger.documents.content import sent_turn
    from ledger.keys.envelope import Envelope

    turns: str | Turns = sent if isinstance(sent, str) else tuple(sent_turn(each.role, each.content) for each in sent)
    proof, lacking = _proof(receipt, ledger)
    file = ReceiptFile(Envelope.from_bytes(receipt.envelope), receipt.content, turns, receipt.text, proof)
    write_new(path, file.to_bytes())
    return None if proof else lacking


def _proof(receipt: Receipt, ledger: str) -> tuple[TlogProof | None, str]:
    """The proof, and the reason if it is missing."""
    from services.cli.ledger.export import proof_of

    def proven() -> TlogProof | None:
        with suppress(NotFound):
            return proof_of(client, client.receipt(receipt.receipt_id).receipt.index)
        return None

    try:
        with ledger_at(ledger) as client:
            proof = unless_interrupted(lambda: awaited(proven, _PATIENCE), client.close)
            return proof, f"the log has not taken the receipt within {_PATIENCE:.0f} s"
    except KeyboardInterrupt:
        return None, "interrupted"
    except KolmError as error:
        return None, f"the ledger at {ledger} does not answer: {error.message}"


def export_statement(ledger: LedgerClient, named: str, path: Path, key: Signer, trusted_folder: Path) -> str:
    """Write the statement; returns the receipt's id. Checks the receipt, its place in the log and the verdicts before
    it signs.

    Raises NotFound, UsageError, KolmError, LedgerError.
    """
    from services.cli.trust import load_trusted
    from services.client.ledger.verified import VerifiedLedger

    trusted = load_trusted(trusted_folder)
    receipt_id = find(ledger, named).receipt.receipt_id
    write_new(path, _cose(ledger, VerifiedLedger(ledger, trusted).receipt(receipt_id), trusted, key))
    return receipt_id


def _cose(ledger: LedgerClient, details: ReceiptDetails, trusted: TrustedKeys, key: Signer) -> bytes:
    from ledger.statements.scitt import Place, check_cose_receipt, transparent_statement
    from ledger.tree.checkpoint import open_checkpoint

    receipt_id, entry = details.receipt.receipt_id, details.receipt.entry.to_bytes()
    answer, logs = ledger.cose_receipt(receipt_id), trusted.keys("log")
    if answer.entry != entry:
        raise ProofError("the ledger sent the COSE Receipt of another entry")
    proof = answer.inclusion_proof
    place = Place(entry, proof.index, proof.hashes, open_checkpoint(answer.checkpoint, logs))
    check_cose_receipt(answer.cose_receipt, place, receipt_id, logs)
    return transparent_statement(entry, receipt_id, key, [answer.cose_receipt])
