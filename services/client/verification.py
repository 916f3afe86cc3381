"""Offline verification for programs: the checks of `kolm verify`. The package kolm-verify is enough."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path

from ledger.bundle.folder import open_bundle
from ledger.bundle.proven import ProvenEntry, prove_entry
from ledger.bundle.receipt_file import ReceiptFile
from ledger.bundle.report import BundleReport, Trust
from ledger.bundle.verification import verify_bundle
from ledger.documents.receipt import Receipt
from ledger.errors import FormatError, KeyFileError
from ledger.keys.trusted_keys import TrustedKeys
from ledger.witness.tlog_policy import Policy

Trusted = str | PathLike[str] | TrustedKeys
"""A folder of public keys, with the file `policy` if witnesses are required; or keys, without witnesses."""


@dataclass(frozen=True, slots=True)
class ProvenReceipt:
    """A receipt that opens to the content in its file, and its entry in the log."""

    receipt: Receipt
    entry: ProvenEntry

    def __str__(self) -> str:
        origin = self.entry.witnessed.checkpoint.origin
        return f"receipt {self.receipt.receipt_id} is entry {self.entry.index} of {origin}"


def verify(bundle: str | PathLike[str], trusted: Trusted, *, max_unreplayable: int = 0) -> BundleReport:
    """Run the checklist over a bundle (folder, .tar.gz, .tar); `report.ok` is True if every check passed.

    At most `max_unreplayable` receipts may be UNREPLAYABLE, UNSTABLE or UNCHECKED. Owed replays are counted by this
    machine's clock.

    Raises LedgerError: NotFound without a bundle, FormatError for an unreadable archive, KeyFileError.
    """
    now = datetime.now(UTC)
    trust = Trust(*_trusted(trusted), as_of=now, now=now, max_unreplayable=max_unreplayable)
    with open_bundle(Path(bundle)) as opened:
        return verify_bundle(opened, trust)


def verify_receipt(file: str | PathLike[str], trusted: Trusted) -> ProvenReceipt:
    """Check a receipt file, as `kolm generate --save` writes it: its content, its signatures, its place in the log.

    Raises LedgerError for a failed check, OSError for a file that cannot be read.
    """
    opened = ReceiptFile.from_bytes(Path(file).read_bytes())
    document = opened.receipt()
    if opened.proof is None:
        raise FormatError("receipt file", "opens the receipt, but holds no proof that the log took it")
    return ProvenReceipt(document, prove_entry(opened.proof, Trust(*_trusted(trusted))))


def trusted_keys(trusted: Trusted) -> TrustedKeys:
    """Raises KeyFileError."""
    if isinstance(trusted, TrustedKeys):
        return trusted
    folder = Path(trusted)
    if not folder.is_dir():
        raise KeyFileError(f"trusted: {folder} is not a folder with public keys")
    return TrustedKeys.load(folder, retired=True)


def _trusted(trusted: Trusted) -> tuple[TrustedKeys, Policy | None]:
    keys = trusted_keys(trusted)
    if isinstance(trusted, TrustedKeys) or not (policy := Path(trusted) / "policy").is_file():
        return keys, None
    return keys, Policy.from_bytes(policy.read_bytes())
