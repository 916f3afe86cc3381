"""Fetching a head, and checking one that is here already or only in the registry."""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger.audit.draft_head_evidence import (
    PROVENANCE,
    DraftHeadEvidence,
    PublishedDraftHead,
    check_files,
    verify_draft_head,
)
from ledger.keys.trusted_keys import TrustedKeys
from services.cli.exits import UsageError
from services.cli.progress import transfers
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

    head: PublishedDraftHead
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
    """Into `out`, or into `cache/<digits of its identifier>`.

    Raises KolmError, DraftHeadRefused, UsageError, OSError.
    """
    evidence, published = find_head(registry, ledger, trusted, reference, base_cid)
    folder = out or cache / published.cid.removeprefix("cidv1:sha256:")
    _check_place(folder, published)
    with transfers("downloading") as progress:
        fetch_head(registry, evidence, published, folder, lambda part, at: progress(part.name, at, part.size))
    return Checked(published, False, folder)


def _check_place(folder: Path, published: PublishedDraftHead) -> None:
    """Files that came from no registry are nobody's to overwrite. Raises UsageError, OSError."""
    if (folder / PROVENANCE).exists():
        return
    for part in published.manifest.files:
        path = folder / part.name
        if path.exists() and (path.stat().st_size != part.size or _digest(path) != part.digest):
            raise UsageError(f"--out: {path} is there and is no file of this head", "name another folder")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def verify_folder(folder: Path, trusted: TrustedKeys, ledger: LedgerClient | None) -> Checked:
    """Raises DraftHeadRefused, FormatError. Without an answer from the ledger, withdrawals stay unknown."""
    evidence = DraftHeadEvidence.read(folder)
    published = verify_draft_head(evidence, trusted)
    check_files(published.manifest, folder)
    return Checked(published, _withdrawn(ledger, published), folder)


def _withdrawn(ledger: LedgerClient | None, published: PublishedDraftHead) -> bool | None:
    if ledger is None:
        return None
    try:
        check_withdrawals(ledger, published.cid)
    except (Unavailable, DeadlineExceeded):
        return None
    return False


def verified(head: str, trusted: TrustedKeys, registry: str, ledger: str | None) -> Checked:
    """Raises DraftHeadRefused, FormatError, KolmError, UsageError."""
    folder = folder_of(head)
    if folder is not None:
        with LedgerClient.connect(ledger) if ledger else nullcontext() as log:
            return verify_folder(folder, trusted, log)
    if ledger is None:
        raise UsageError(f"{head} is no folder; a reference cannot be checked with --offline")
    with (
        closing(RegistryClient.connect(registry)) as client,
        LedgerClient.connect(ledger) as log,
        tempfile.TemporaryDirectory() as scratch,
    ):
        checked = pull(client, log, trusted, head, None, Path(scratch) / "head", Path(scratch))
        return Checked(checked.head, checked.withdrawn)


def folder_of(head: str) -> Path | None:
    """The folder that `head` names, None for a reference. Raises UsageError where it can be neither.

    A reference holds no slash. A word without one is a folder only where a head is in there: a head that is called like
    some directory here (`demo`, in this repository) is found by its name.
    """
    folder = Path(head)
    if "/" in head and not folder.is_dir():
        raise UsageError(f"there is no folder {head}", "a reference is a name, name@sha256:<digits> or cidv1:sha256:…")
    return folder if "/" in head or (folder / "config.json").is_file() else None
