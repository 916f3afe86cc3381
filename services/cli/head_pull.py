"""Fetching a head, and checking one again that is here already."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger.head_evidence import PROVENANCE, HeadEvidence, PublishedHead, check_files, verify_head
from ledger.keys import TrustedKeys
from services.cli.exits import UsageError
from services.cli.transfer_view import transfers
from services.client import LedgerClient
from services.client.errors import DeadlineExceeded, Unavailable
from services.client.head_fetch import check_withdrawals, fetch_head, find_head
from services.client.registry import RegistryClient

CHECKS = (
    "The manifest is well-formed and names its base",
    "A trusted publisher has signed its publication",
    "The publication stands in the signed log",
    "Every file has the size and digest of the manifest",
    "No publisher has withdrawn it",
)


@dataclass(frozen=True, slots=True)
class Checked:
    """`withdrawn` is None where the ledger could not be asked; then only what cannot change has been checked."""

    head: PublishedHead
    withdrawn: bool | None
    folder: Path | None = None

    def to_json(self) -> dict[str, Any]:
        publication, manifest = self.head.publication, self.head.manifest
        return {
            "head_cid": self.head.cid,
            "name": publication.name,
            "base_cid": manifest.subject,
            "publisher": publication.publisher,
            "issued_at": publication.issued_at,
            "ledger_index": self.head.index,
            "tree_size": self.head.tree_size,
            "size": manifest.size,
            "withdrawn": self.withdrawn,
            "folder": None if self.folder is None else str(self.folder),
        }


def pull(
    registry: RegistryClient,
    ledger: LedgerClient,
    trusted: TrustedKeys,
    reference: str,
    base_cid: str | None,
    out: Path | None,
    cache: Path,
) -> Checked:
    """Into `out`, or into `cache/<digits of its identifier>`. Raises KolmError, HeadRefused, UsageError, OSError."""
    evidence, published = find_head(registry, ledger, trusted, reference, base_cid)
    folder = out or cache / published.cid.removeprefix("cidv1:sha256:")
    _check_place(folder, published)
    with transfers("downloading") as progress:
        fetch_head(registry, evidence, published, folder, lambda part, at: progress(part.name, at, part.size))
    return Checked(published, False, folder)


def _check_place(folder: Path, published: PublishedHead) -> None:
    """Files that came from no registry are nobody's to overwrite. Raises UsageError, OSError."""
    if (folder / PROVENANCE).exists():
        return
    for part in published.manifest.parts:
        path = folder / part.name
        if path.exists() and (path.stat().st_size != part.size or _digest(path) != part.digest):
            raise UsageError(f"--out: {path} is there and is no file of this head", "name another folder")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def verify_folder(folder: Path, trusted: TrustedKeys, ledger: LedgerClient | None) -> Checked:
    """Raises HeadRefused, FormatError. Without an answer from the ledger, withdrawals stay unknown."""
    evidence = HeadEvidence.read(folder)
    published = verify_head(evidence, trusted)
    check_files(published.manifest, folder)
    return Checked(published, _withdrawn(ledger, published), folder)


def _withdrawn(ledger: LedgerClient | None, published: PublishedHead) -> bool | None:
    if ledger is None:
        return None
    try:
        check_withdrawals(ledger, published.cid)
    except (Unavailable, DeadlineExceeded):
        return None
    return False
