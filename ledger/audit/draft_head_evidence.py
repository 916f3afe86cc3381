"""A numbered checklist that decides whether a draft head may be loaded, by the evidence in its folder. Only
`check_files` reads files.

    1  the manifest is well-formed, and the draft head is for this base
    2  the entry holds a publication of exactly this manifest, signed by a trusted publisher
    3  the entry is in a tree that a trusted key of the log has signed
    4  every file has the size and digest that the manifest names
    5  the log holds no withdrawal of the draft head

Once passed, 1 to 4 stay passed. 5 is the log's present answer: it has no offline proof.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ledger.documents.draft_head import DraftHeadPublication, DraftHeadWithdrawal
from ledger.documents.manifests import DraftHeadManifest, NamedFile
from ledger.documents.signed_document import open_document, read_document
from ledger.errors import (
    DraftHeadDamaged,
    DraftHeadOfAnotherBase,
    DraftHeadUnlogged,
    DraftHeadUnsigned,
    DraftHeadWithdrawn,
    FormatError,
    LedgerError,
)
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import open_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.tlog_proof import TlogProof

MANIFEST_FILE, PROOF_FILE = "manifest.json", "publication.tlog-proof"
PROVENANCE = "provenance"


@dataclass(frozen=True, slots=True)
class DraftHeadEvidence:
    """The evidence for a draft head: its manifest, and a C2SP tlog-proof with the publication's entry."""

    manifest: bytes
    proof: TlogProof

    def write(self, head: Path) -> None:
        """Write it into a head's folder, under `provenance/`. Raises OSError."""
        folder = head / PROVENANCE
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST_FILE).write_bytes(self.manifest)
        (folder / PROOF_FILE).write_bytes(self.proof.to_bytes())

    @classmethod
    def read(cls, head: Path) -> DraftHeadEvidence:
        """The evidence in a head's folder. Raises DraftHeadUnlogged if none is there, FormatError if it is bad."""
        folder = head / PROVENANCE
        try:
            return cls((folder / MANIFEST_FILE).read_bytes(), TlogProof.from_bytes((folder / PROOF_FILE).read_bytes()))
        except OSError as error:
            raise DraftHeadUnlogged(f"{head} has no evidence of its publication: {error}") from None


@dataclass(frozen=True, slots=True)
class PublishedDraftHead:
    """A draft head that passed checks 1 to 3."""

    manifest: DraftHeadManifest
    publication: DraftHeadPublication
    index: int
    tree_size: int

    @property
    def cid(self) -> str:
        return self.manifest.cid


def verify_draft_head(
    evidence: DraftHeadEvidence, trusted: TrustedKeys, base_cid: str | None = None, origin: str | None = None
) -> PublishedDraftHead:
    """Checks 1 to 3; without a `base_cid`, for the base that the manifest names. Raises DraftHeadRefused."""
    manifest = _manifest(evidence.manifest)
    if base_cid not in (None, manifest.subject):
        raise DraftHeadOfAnotherBase(f"{manifest.cid} is for the base {manifest.subject}, not for {base_cid}")
    entry = _entry(evidence.proof)
    publication = _publication(entry, manifest, trusted)
    try:
        checkpoint = open_checkpoint(evidence.proof.checkpoint, trusted.keys("log"), origin)
        evidence.proof.verify(entry.to_bytes(), checkpoint)
    except LedgerError as error:
        raise DraftHeadUnlogged(f"{manifest.cid}: its publication is not proven to be in the log: {error}") from error
    return PublishedDraftHead(manifest, publication, entry.index, checkpoint.size)


def check_files(manifest: DraftHeadManifest, folder: Path) -> None:
    """Check 4. Raises DraftHeadDamaged naming the file."""
    for file in manifest.files:
        _check_file(file, folder / file.name)


def check_not_withdrawn(head_cid: str, entries: Iterable[bytes]) -> None:
    """Check 5, over the withdrawals of a log. Raises DraftHeadWithdrawn.

    A signature by an untrusted key counts too: the log took it, and not loading a head is always safe.
    """
    for data in entries:
        document = read_document(Entry.from_bytes(data).envelope)
        if isinstance(document, DraftHeadWithdrawal) and document.manifest_cid == head_cid:
            raise DraftHeadWithdrawn(f"{head_cid} was withdrawn at {document.issued_at}: {document.reason}")


def _manifest(data: bytes) -> DraftHeadManifest:
    try:
        return DraftHeadManifest.from_bytes(data)
    except FormatError as error:
        raise DraftHeadDamaged(f"its manifest is not a manifest: {error}") from error


def _entry(proof: TlogProof) -> Entry:
    try:
        entry = Entry.from_bytes(proof.extra or b"")
    except FormatError as error:
        raise DraftHeadUnlogged(f"its proof carries no entry: {error}") from error
    if entry.index != proof.index:
        raise DraftHeadUnlogged(f"its proof is about entry {proof.index} and carries entry {entry.index}")
    return entry


def _publication(entry: Entry, manifest: DraftHeadManifest, trusted: TrustedKeys) -> DraftHeadPublication:
    try:
        document = open_document(entry.envelope, trusted)
    except LedgerError as error:
        raise DraftHeadUnsigned(f"{manifest.cid}: {error}") from error
    if not isinstance(document, DraftHeadPublication) or document.manifest_cid != manifest.cid:
        raise DraftHeadUnlogged(f"{manifest.cid}: entry {entry.index} does not publish it")
    if document.base_cid != manifest.subject:
        raise DraftHeadOfAnotherBase(
            f"{manifest.cid} was published for {document.base_cid}, it is for {manifest.subject}"
        )
    return document


def _check_file(file: NamedFile, path: Path) -> None:
    try:
        if path.stat().st_size != file.size:
            raise DraftHeadDamaged(f"{path} has {path.stat().st_size:,} bytes; its manifest has {file.size:,}")
        with path.open("rb") as opened:
            found = "sha256:" + hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise DraftHeadDamaged(f"cannot read {path}: {error.strerror}") from None
    if found != file.digest:
        raise DraftHeadDamaged(f"{path} is {found}; its manifest has {file.digest}")
