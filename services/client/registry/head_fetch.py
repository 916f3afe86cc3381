"""Fetches a head from the registry into a folder; keeps nothing that was not checked against the ledger's tree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ledger.audit.draft_head_evidence import (
    DraftHeadEvidence,
    PublishedDraftHead,
    check_files,
    check_not_withdrawn,
    verify_draft_head,
)
from ledger.documents.named_file import NamedFile
from ledger.errors import DraftHeadOfAnotherBase, DraftHeadRefused, DraftHeadUnlogged, DraftHeadWithdrawn
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.tlog_proof import TlogProof
from services.client.errors import FailedPrecondition, NotFound
from services.client.ledger.ledger import LedgerClient
from services.client.registry.heads import Head
from services.client.registry.registry import RegistryClient
from services.client.registry.transfer import download

FileProgress = Callable[[NamedFile, int], None]
"""Takes a file and how many of its bytes are here."""


def find_head(
    registry: RegistryClient, ledger: LedgerClient, trusted: TrustedKeys, reference: str, base_cid: str | None
) -> tuple[DraftHeadEvidence, PublishedDraftHead]:
    """The head that a reference names, verified: the registry is not trusted.

    Raises KolmError, DraftHeadRefused. A reference to a head of another base is DraftHeadOfAnotherBase, never a miss.
    """
    head = _resolve(registry, reference, base_cid)
    evidence, published = _proven(head, reference, ledger, trusted, base_cid)
    check_withdrawals(ledger, head.head_cid)
    return evidence, published


def fetch_head(
    registry: RegistryClient,
    evidence: DraftHeadEvidence,
    published: PublishedDraftHead,
    folder: Path,
    progress: FileProgress = lambda file, position: None,
) -> None:
    """Fetch a head's files into `folder`, verified, with the evidence beside them. Skips files that are there.

    Raises KolmError, DraftHeadDamaged, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in published.manifest.files:

        def arrived(position: int, file: NamedFile = file) -> None:
            progress(file, position)

        download(registry, file, folder / file.name, arrived)
    check_files(published.manifest, folder)
    evidence.write(folder)


def check_withdrawals(ledger: LedgerClient, head_cid: str) -> None:
    """Raises DraftHeadWithdrawn if the log holds a withdrawal of the head, KolmError."""
    with ledger.watch(kinds=["head_withdrawal"]) as entries:
        check_not_withdrawn(head_cid, (entry.entry for entry in entries))


def _resolve(registry: RegistryClient, reference: str, base_cid: str | None) -> Head:
    try:
        return registry.resolve(reference, base_cid=base_cid)
    except FailedPrecondition as error:
        if error.reason != "HEAD_WITHDRAWN":
            raise
        raise DraftHeadWithdrawn(error.message) from error
    except NotFound:
        if base_cid is None or not reference:
            raise
        other = registry.resolve(reference, include_withdrawn=True)
        raise DraftHeadOfAnotherBase(f"{reference} is for the base {other.base_cid}, not for {base_cid}") from None


def _proven(
    head: Head, reference: str, ledger: LedgerClient, trusted: TrustedKeys, base_cid: str | None
) -> tuple[DraftHeadEvidence, PublishedDraftHead]:
    """Verify a head by the first valid publication under the name that was asked for."""
    refused: DraftHeadRefused = DraftHeadUnlogged(
        f"{head.head_cid}: the registry shows no publication of it as {reference}"
    )
    for publication in head.publications:
        try:
            evidence = DraftHeadEvidence(head.manifest, _proof(ledger, publication.ledger_index))
            published = verify_draft_head(evidence, trusted, base_cid)
        except DraftHeadRefused as error:
            refused = error
            continue
        if answers(published, reference):
            return evidence, published
    raise refused


def _proof(ledger: LedgerClient, index: int) -> TlogProof:
    try:
        proven, entry = ledger.inclusion_proof(index), ledger.entry(index)
    except NotFound as error:
        raise DraftHeadUnlogged(
            f"its publication is said to be entry {index}, which the ledger does not hold"
        ) from error
    return TlogProof(index, proven.proof.hashes, proven.checkpoint, entry.entry)


def answers(published: PublishedDraftHead, reference: str) -> bool:
    """Whether a reference really names this head, whatever the registry says. The empty one names any head."""
    if reference.startswith("cidv1:"):
        return published.cid == reference
    name, _, digits = reference.partition("@sha256:")
    return name in ("", published.publication.name) and published.cid.startswith(f"cidv1:sha256:{digits}")
