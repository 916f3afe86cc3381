"""Offline verification for programs: the checks of `kolm verify`. The package kolm-verify is enough."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path

from ledger.bundle.folder import opened_bundle
from ledger.bundle.proven_entry import ProvenEntry, prove_entry
from ledger.bundle.receipt_file import ReceiptFile
from ledger.bundle.report import BundleReport, Trust
from ledger.bundle.verification import verify_bundle
from ledger.documents.receipt import Receipt
from ledger.errors import FormatError, KeyFileError
from ledger.keys.trusted_keys import TrustedKeys
from ledger.witness.tlog_policy import Policy


@dataclass(frozen=True, slots=True)
class ProvenReceipt:
    """A receipt that opens to the content in its file, and the entry of the log that it is."""

    receipt: Receipt
    entry: ProvenEntry


def verify(bundle: str | PathLike[str], trusted: str | PathLike[str], *, max_unreplayable: int = 0) -> BundleReport:
    """Run the checklist over a bundle (folder, .tar.gz, .tar, .zip); `report.ok` says whether all of it holds.

    `trusted` is a folder of public keys, with the file `policy` where witnesses are asked for. At most
    `max_unreplayable` receipts may be UNREPLAYABLE. Owed replays are counted by this machine's clock.

    Raises LedgerError: NotFound where there is no bundle, FormatError for an archive that cannot be read, KeyFileError.
    """
    now = datetime.now(UTC)
    trust = Trust(*_trusted(Path(trusted)), as_of=now, now=now, max_unreplayable=max_unreplayable)
    with opened_bundle(Path(bundle)) as opened:
        return verify_bundle(opened, trust)


def verify_receipt(file: str | PathLike[str], trusted: str | PathLike[str]) -> ProvenReceipt:
    """Check a receipt file, as `kolm generate --save` writes it: its content, its signatures, its place in the log.

    Raises LedgerError for what does not hold, OSError for a file that cannot be read.
    """
    opened = ReceiptFile.from_bytes(Path(file).read_bytes())
    document = opened.receipt()
    if opened.proof is None:
        raise FormatError("receipt file", "opens the receipt, but holds no proof that the log took it")
    return ProvenReceipt(document, prove_entry(opened.proof, Trust(*_trusted(Path(trusted)))))


def _trusted(folder: Path) -> tuple[TrustedKeys, Policy | None]:
    if not folder.is_dir():
        raise KeyFileError(f"trusted: {folder} is not a folder with public keys")
    policy = folder / "policy"
    keys = TrustedKeys.load(folder, retired=True)
    return keys, Policy.from_bytes(policy.read_bytes()) if policy.is_file() else None
