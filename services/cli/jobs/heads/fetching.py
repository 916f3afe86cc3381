"""Fetching a head, and checking one that is here already or only in the registry."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from ledger.audit.draft_head_evidence import (
    PROVENANCE,
    DraftHeadEvidence,
    PublishedDraftHead,
    check_files,
    verify_draft_head,
)
from ledger.errors import DraftHeadRefused
from ledger.keys.trusted_keys import TrustedKeys
from services.cli.failures.exits import UsageError
from services.cli.jobs.trust import load_trusted
from services.cli.terminal.progress import transfers
from services.client import LedgerClient
from services.client.errors import DataLoss, DeadlineExceeded, NotFound, Unavailable
from services.client.head_folder import check_withdrawals, fetch_head, find_head
from services.client.registry import RegistryClient


@dataclass(frozen=True, slots=True)
class Checked:
    """A head that is as published. `withdrawn` is None if the ledger could not be asked."""

    head: PublishedDraftHead
    withdrawn: bool | None
    folder: Path | None = None


def pull(
    registry: RegistryClient,
    ledger: LedgerClient,
    trusted: TrustedKeys,
    reference: str,
    *,
    base_cid: str | None = None,
    out: Path | None = None,
    cache: Path,
) -> Checked:
    """Fetch a head into `out`, or into `cache/<digits of its identifier>`, and check it.

    Raises KolmError, DraftHeadRefused, UsageError, OSError.
    """
    evidence, published = find_head(registry, ledger, trusted, reference, base_cid)
    folder = out or cache / published.cid.removeprefix("cidv1:sha256:")
    _check_place(folder, published)
    is_new = not folder.exists()
    try:
        with transfers("downloading") as progress:
            fetch_head(registry, evidence, published, folder, lambda part, at: progress(part.name, at, part.size))
    except (DataLoss, NotFound, DraftHeadRefused):
        _clear(folder, published, is_new=is_new)
        raise
    return Checked(published, False, folder)


def _clear(folder: Path, published: PublishedDraftHead, *, is_new: bool) -> None:
    """After a failure that trying again does not mend. An interrupted pull keeps what has arrived."""
    if is_new:
        shutil.rmtree(folder, ignore_errors=True)
    for part in published.manifest.files:
        (folder / f"{part.name}.part").unlink(missing_ok=True)


def _check_place(folder: Path, published: PublishedDraftHead) -> None:
    """Refuse to overwrite files that came from no registry. Raises UsageError, OSError."""
    if (folder / PROVENANCE).exists():
        return
    for part in published.manifest.files:
        path = folder / part.name
        if path.exists() and (path.stat().st_size != part.size or _digest(path) != part.digest):
            raise UsageError(f"--out: {path} exists and is no file of this head", "name another folder")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _verify_folder(folder: Path, trusted: TrustedKeys, ledger: LedgerClient | None) -> Checked:
    """Check the head in a folder; without an answer from the ledger, withdrawals stay unknown.

    Raises DraftHeadRefused, FormatError.
    """
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


def verified(
    head: str, trusted: TrustedKeys, registry: str, ledger: str | None, base_cid: str | None = None
) -> Checked:
    """Check a folder, or the head that a reference names.

    Raises DraftHeadRefused, FormatError, KolmError, UsageError.
    """
    folder = _folder_of(head)
    if folder is not None:
        with LedgerClient.connect(ledger) if ledger else nullcontext() as log:
            return _verify_folder(folder, trusted, log)
    if ledger is None:
        raise UsageError(f"{head} is no folder; a reference cannot be checked with --offline")
    with (
        RegistryClient.connect(registry) as client,
        LedgerClient.connect(ledger) as log,
        tempfile.TemporaryDirectory() as scratch,
    ):
        checked = pull(client, log, trusted, head, base_cid=base_cid, cache=Path(scratch))
        return Checked(checked.head, checked.withdrawn)


def local_folder(head: str, trusted: Path, registry: str, ledger: str, cache: Path) -> Path:
    """Where a head's files are. The head that a reference names is fetched into the cache and checked first.

    Raises what `pull` and `load_trusted` raise.
    """
    given = _folder_of(head)
    if given is not None:
        return given
    keys = load_trusted(trusted)
    with RegistryClient.connect(registry) as client, LedgerClient.connect(ledger) as log:
        folder = pull(client, log, keys, head, cache=cache).folder
    assert folder is not None
    return folder


def _folder_of(head: str) -> Path | None:
    """The folder that `head` names, None for a reference. Raises UsageError if it can be neither.

    A reference holds no slash. A word without a slash is a folder only if there is a head in it: a head with the name
    of some directory here (`demo`, in this repository) is found by its name.
    """
    folder = Path(head)
    if "/" in head and not folder.is_dir():
        raise UsageError(f"there is no folder {head}", "a reference is a name, name@sha256:<digits> or cidv1:sha256:…")
    return folder if "/" in head or (folder / "config.json").is_file() else None
