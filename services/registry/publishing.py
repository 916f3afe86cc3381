"""The way of a signed document about a head: checked, proposed, appended to the ledger, confirmed."""

from __future__ import annotations

import logging
from typing import TypeVar

from ledger.documents.draft_head_manifest import DraftHeadManifest
from ledger.documents.draft_head_publication import DraftHeadPublication, DraftHeadWithdrawal
from ledger.documents.kscore import KScore
from ledger.documents.signed_document import Document, kind_of, open_document
from ledger.encoding.digest import digest
from ledger.errors import FormatError, LedgerError, SignatureError
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from services.registry.blob_references import check_whole
from services.registry.blobs import BlobStore
from services.registry.catalogue import (
    KSCORE,
    PUBLICATION,
    WITHDRAWAL,
    Catalogue,
    CataloguedHead,
    Check,
    HeadRow,
    Signed,
)
from services.registry.errors import BadDocument, BadManifest, UntrustedSignature
from services.registry.head_check import check_head
from services.registry.log import Log
from services.registry.ownership import check_name, check_withdrawal
from services.registry.resolving import refuse_withdrawn
from services.runtime.errors import NotFound, Unavailable
from services.runtime.outage import Outage

_log = logging.getLogger(__name__)

_ATTEMPTS = 3

_Document = TypeVar("_Document", DraftHeadPublication, DraftHeadWithdrawal, KScore)


class Publishing:
    """Blocking; from any thread. Everything is idempotent: a call that is repeated after a crash finishes the first."""

    def __init__(self, catalogue: Catalogue, blobs: BlobStore, log: Log, trusted: TrustedKeys) -> None:
        self._catalogue = catalogue
        self._blobs = blobs
        self._log = log
        self._trusted = trusted
        self._outage = Outage(_log, "append the documents that wait for the ledger", Unavailable)

    def publish(self, manifest_bytes: bytes, envelope: bytes) -> tuple[CataloguedHead, bool]:
        """The head, and whether this call gave it its name. Raises what RegistryService.PublishHead names."""
        manifest = _manifest(manifest_bytes)
        canonical, publication = self._opened(envelope, DraftHeadPublication)
        if (publication.manifest_cid, publication.base_cid) != (manifest.cid, manifest.subject):
            raise BadDocument(f"is about {publication.manifest_cid}, the manifest is {manifest.cid}")
        known = self._catalogue.head(manifest.cid)
        if known is not None:
            refuse_withdrawn(known)
        check_head(manifest, self._blobs)
        row = HeadRow(manifest.cid, manifest.subject, manifest_bytes)
        document = Signed(PUBLICATION, manifest.cid, publication.name, canonical)

        def check(first: Signed | None) -> None:
            check_whole(manifest, self._blobs)
            check_name(first, document, self._log)

        recorded = self._record(row, document, check)
        return self._head(manifest.cid), recorded.envelope == canonical

    def withdraw(self, envelope: bytes) -> CataloguedHead:
        """The head, withdrawn. Raises NotFound for one that nobody published, NotThePublisher,
        UntrustedSignature, BadDocument.
        """
        canonical, withdrawal = self._opened(envelope, DraftHeadWithdrawal)
        head = self._head(withdrawal.manifest_cid)
        check_withdrawal(head, canonical, self._trusted, self._log)
        self._record(head.row, Signed(WITHDRAWAL, head.row.head_cid, "", canonical))
        return self._head(head.row.head_cid)

    def record_kscore(self, envelope: bytes) -> CataloguedHead:
        """The head, with the score. Raises as `withdraw` does."""
        canonical, score = self._opened(envelope, KScore)
        head = self._head(score.manifest_cid)
        if score.base_cid != head.row.base_cid:
            raise BadDocument(f"was measured on {score.base_cid}, the head is for {head.row.base_cid}")
        self._record(head.row, Signed(KSCORE, head.row.head_cid, digest(canonical), canonical))
        return self._head(head.row.head_cid)

    def finish_proposals(self) -> bool:
        """Append the proposals that a crash or an absent ledger has left. False where the ledger still is away.

        For one thread at a time.
        """
        with self._outage:
            for proposal in self._catalogue.proposals():
                try:
                    self._append(proposal)
                except (UntrustedSignature, BadDocument) as error:
                    _log.warning("%s of %s is given up: %s", proposal.kind, proposal.head_cid, error)
            return True
        return False

    def _record(self, row: HeadRow, document: Signed, check: Check = lambda first: None) -> Signed:
        """The document that stands under this key, on record. One whose proposal the ledger refuses makes room."""
        for attempt in range(_ATTEMPTS):
            proposed = self._catalogue.propose(row, document, check)
            if proposed.ledger_index is not None:
                return proposed
            try:
                self._append(proposed)
            except (UntrustedSignature, BadDocument):
                if proposed.envelope == document.envelope or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return proposed
        raise AssertionError("the last attempt returns or raises")

    def _append(self, proposal: Signed) -> None:
        try:
            index = self._log.append(proposal.envelope)
        except (UntrustedSignature, BadDocument):
            self._catalogue.retract(proposal)
            raise
        self._catalogue.confirm(proposal, index)

    def _opened(self, data: bytes, expected: type[_Document]) -> tuple[bytes, _Document]:
        """The canonical envelope and the document in it, signed by a key that is trusted here."""
        try:
            envelope = Envelope.from_bytes(data)
            document: Document = open_document(envelope, self._trusted)
        except SignatureError as error:
            raise UntrustedSignature(str(error)) from error
        except LedgerError as error:
            raise BadDocument(str(error)) from error
        if not isinstance(document, expected):
            raise BadDocument(f"holds a {kind_of(document)}; expected {expected.TYPE}")
        return envelope.to_bytes(), document

    def _head(self, head_cid: str) -> CataloguedHead:
        head = self._catalogue.head(head_cid)
        if head is None:
            raise NotFound("head", head_cid, "nobody has published it here")
        return head


def _manifest(data: bytes) -> DraftHeadManifest:
    try:
        return DraftHeadManifest.from_bytes(data)
    except FormatError as error:
        raise BadManifest(error.field, error.problem) from error
