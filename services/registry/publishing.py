"""The way of a signed document about a head: checked, proposed, appended to the ledger, confirmed.

A name belongs to the publisher who used it first, and to the keys that replaced that publisher's in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ledger.audit.log_verification import verify_appended
from ledger.documents.draft_head import DraftHeadPublication, DraftHeadWithdrawal, KScore
from ledger.documents.key_history import KeyHistory
from ledger.documents.manifests import BaseManifest, DraftHeadManifest
from ledger.documents.signed_document import Document, kind_of, open_document, read_document
from ledger.encoding.text_forms import digest
from ledger.errors import FormatError, LedgerError, SignatureError
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from services.client import errors as client
from services.client.ledger.ledger import LedgerClient
from services.registry.blobs import BlobStore
from services.registry.errors import BadDocument, DatedAhead, NameTaken, UntrustedSignature
from services.registry.head_catalogue import (
    KSCORE,
    PUBLICATION,
    WITHDRAWAL,
    Catalogue,
    CataloguedHead,
    Check,
    HeadReference,
    HeadRow,
    Signed,
)
from services.runtime.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from services.runtime.process import Outage

_log = logging.getLogger(__name__)


_MOST_CANDIDATES = 1000
_SHOWN = 8

_MOST_BASE_BYTES = 16 * 1024 * 1024  # of a base's manifest
_ATTEMPTS = 3
_Document = TypeVar("_Document", DraftHeadPublication, DraftHeadWithdrawal, KScore)


def resolve(catalogue: Catalogue, text: str, base_cid: str | None, withdrawn: bool) -> CataloguedHead:
    """The head of a reference: the newest loadable one of a name, or of the base; digits have to match one head.

    Raises InvalidArgument, NotFound, FailedPrecondition.
    """
    reference = HeadReference.parse(text)
    if not text and base_cid is None:
        raise InvalidArgument("reference", "expected a reference, or base_cid for the newest head of a base")
    found = catalogue.candidates(reference, base_cid, _MOST_CANDIDATES)
    loadable = [head for head in found if withdrawn or head.withdrawal is None]
    if not found:
        hint = f"for {base_cid}; " if base_cid and text else ""
        raise NotFound("head", text or f"for {base_cid}", f"{hint}`kolm heads list` shows what is published")
    if not loadable:
        refuse_withdrawn(found[0])
    if reference.digits and len(loadable) > 1:
        names = ", ".join(_names(loadable))
        problem = f"{text!r} names several heads: {names}; add digits until it names one"
        raise FailedPrecondition(problem, reason="AMBIGUOUS_REFERENCE", metadata={"candidates": names})
    return loadable[0]


def refuse_withdrawn(head: CataloguedHead) -> None:
    """Raise FailedPrecondition (HEAD_WITHDRAWN) if the head is withdrawn."""
    if head.withdrawal is None:
        return
    document = read_document(Envelope.from_bytes(head.withdrawal.envelope))
    reason = document.reason if isinstance(document, DraftHeadWithdrawal) else ""
    cid = head.row.head_cid
    raise FailedPrecondition(f"{cid} was withdrawn: {reason}", reason="HEAD_WITHDRAWN", metadata={"head_cid": cid})


def _names(heads: Sequence[CataloguedHead]) -> list[str]:
    names = [f"{head.names[0]}@{head.row.head_cid.removeprefix('cidv1:')}" for head in heads[:_SHOWN]]
    return names + (["…"] if len(heads) > _SHOWN else [])


@dataclass(frozen=True, slots=True)
class Signer:
    """The signers of a document: the keys' ids, and the publisher's name, if the document has it."""

    keys: frozenset[str]
    name: str | None = None

    @classmethod
    def of(cls, envelope: bytes) -> Signer:
        read = Envelope.from_bytes(envelope)
        document = read_document(read)
        name = document.publisher if isinstance(document, DraftHeadPublication) else None
        return cls(frozenset(signature.key_id for signature in read.signatures), name)

    def __str__(self) -> str:
        keys = ", ".join(sorted(self.keys))
        return keys if self.name is None else f"{self.name} ({keys})"


def check_name(first: Signed | None, document: Signed, log: Log) -> None:
    """Raise NameTaken if `first`, the first publication under this name or under one that differs only in case, is
    another publisher's; BadDocument for a new name that ends with a dot; Unavailable.
    """
    if document.key.endswith(".") and (first is None or first.key != document.key):
        raise BadDocument(f"name: {document.key!r} ends with a dot, and reads as the name without it; leave it out")
    if first is None:
        return
    owner, signer = Signer.of(first.envelope), Signer.of(document.envelope)
    if not _same(owner, signer, log):
        raise NameTaken(document.key, str(owner), str(signer))


def check_withdrawal(head: CataloguedHead, envelope: bytes, trusted: TrustedKeys, log: Log) -> None:
    """Raise PermissionDenied unless the head's first publisher, or an operator, has signed; Unavailable."""
    owner, signer = Signer.of(head.of_kind(PUBLICATION)[0].envelope), Signer.of(envelope)
    by_operator = any(trusted.find("operator", key) is not None for key in signer.keys)
    if not by_operator and not _same(owner, signer, log):
        by = f"{head.row.head_cid} was published by {owner}; the withdrawal is signed by {signer}"
        raise PermissionDenied(f"{by}: have that publisher, or an operator, sign it", reason="NOT_THE_PUBLISHER")


def _same(owner: Signer, signer: Signer, log: Log) -> bool:
    """Whether both have a key in common, or the signer has a successor of an owner's key by the log's rotations."""
    return bool(owner.keys & signer.keys) or bool(_successors(owner.keys, log.publisher_rotations()) & signer.keys)


def _successors(keys: frozenset[str], rotations: Sequence[tuple[str, str]]) -> frozenset[str]:
    for old, new in rotations:  # in the order of the log
        if old in keys:
            keys |= {new}
    return keys


class Log(Protocol):
    """The log to which signed documents are appended."""

    def append(self, envelope: bytes) -> int:
        """The index of the entry; a repetition gets the same index.

        Raises UntrustedSignature or BadDocument if the log will never take it as things are, DatedAhead or Unavailable
        (LEDGER_UNAVAILABLE) if it may later.
        """
        ...

    def publisher_rotations(self) -> Sequence[tuple[str, str]]:
        """The replaced keys of publishers: the ids of the old and of the new key, in the order of the log.

        Raises Unavailable (LEDGER_UNAVAILABLE).
        """
        ...


class LedgerLog:
    """A ledger service whose answers are checked: an entry counts once the signed tree contains it."""

    def __init__(self, ledger: LedgerClient, trusted: TrustedKeys) -> None:
        self._ledger = ledger
        self._trusted = trusted

    def append(self, envelope: bytes) -> int:
        try:
            appended = self._ledger.append(envelope)
            entry = self._ledger.entry(appended.index).entry
        except client.InvalidArgument as error:
            if error.reason == "UNTRUSTED_SIGNATURE":
                raise UntrustedSignature(f"the ledger does not trust this publisher: {error.message}") from error
            refused = DatedAhead if error.reason == "CLOCK_AHEAD" else BadDocument
            raise refused(f"the ledger does not take it: {error.message}") from error
        except client.KolmError as error:
            raise _unavailable(f"the ledger does not answer: {error.message}") from error
        try:
            hashes, keys = appended.inclusion_proof.hashes, self._trusted.keys("log")
            verify_appended(envelope, entry, hashes, appended.checkpoint, keys)
        except LedgerError as error:
            _log.error("rejecting the ledger's answer, whose proof is wrong or signed by no trusted key: %s", error)
            raise _unavailable("the ledger's proof is not valid by the keys that this registry trusts") from error
        return appended.index

    def publisher_rotations(self) -> Sequence[tuple[str, str]]:
        """Rotations with valid signatures: of the old key, or of operators."""
        try:
            with self._ledger.watch(kinds=["key"]) as entries:
                following = [(entry.index, entry.envelope.to_bytes()) for entry in entries]
                history = KeyHistory.of(self._trusted).following(following)
        except client.KolmError as error:
            raise _unavailable(f"the ledger does not list replaced keys: {error.message}") from error
        return [(each.old, each.new.key_id) for each in history.rotations if each.role == "publisher"]


def _unavailable(message: str) -> Unavailable:
    return Unavailable(f"{message}; nothing is published without it", retry_after=5.0, reason="LEDGER_UNAVAILABLE")


def check_whole(manifest: DraftHeadManifest, blobs: BlobStore) -> None:
    """Check that every blob of the head exists and is undamaged. The server that loads the head checks its contents.
    Raises FailedPrecondition.
    """
    missing = [part.name for part in manifest.files if not blobs.is_whole(part.digest, part.size)]
    if missing:
        raise FailedPrecondition(f"upload these files first: {', '.join(missing)}", reason="BLOB_MISSING")
    try:
        described = blobs.read(manifest.subject.removeprefix("cidv1:"), _MOST_BASE_BYTES)
        config = BaseManifest.from_bytes(described).model_config
    except (NotFound, DataLoss, FormatError) as error:
        raise _base_unknown(manifest.subject, str(error)) from error
    if not blobs.is_whole(config.digest, config.size):
        raise _base_unknown(manifest.subject, "its config.json is missing")


def _base_unknown(base_cid: str, problem: str) -> FailedPrecondition:
    message = f"the base {base_cid} is not known here ({problem}); upload its manifest and its config.json first"
    return FailedPrecondition(message, reason="BASE_UNKNOWN")


class Publishing:
    """Publishes heads and documents about them. Blocking; for any thread. Calls are idempotent: a call that is repeated
    after a crash finishes the first one.
    """

    def __init__(self, catalogue: Catalogue, blobs: BlobStore, log: Log, trusted: TrustedKeys) -> None:
        self._catalogue = catalogue
        self._blobs = blobs
        self._log = log
        self._trusted = trusted
        self._kept = set[tuple[Signed, str]]()  # refused proposals, with the reasons that were logged
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
        check_whole(manifest, self._blobs)
        row = HeadRow(manifest.cid, manifest.subject, manifest_bytes)
        document = Signed(PUBLICATION, manifest.cid, publication.name, canonical)

        def check(first: Signed | None) -> None:
            check_whole(manifest, self._blobs)
            check_name(first, document, self._log)

        recorded = self._record(row, document, check)
        return self._head(manifest.cid), recorded.envelope == canonical

    def withdraw(self, envelope: bytes) -> CataloguedHead:
        """The head, withdrawn. Raises NotFound, PermissionDenied, UntrustedSignature, BadDocument."""
        canonical, withdrawal = self._opened(envelope, DraftHeadWithdrawal)
        head = self._head(withdrawal.manifest_cid)
        check_withdrawal(head, canonical, self._trusted, self._log)
        self._record(head.row, Signed(WITHDRAWAL, head.row.head_cid, "", canonical))
        return self._head(head.row.head_cid)

    def record_kscore(self, envelope: bytes) -> CataloguedHead:
        """The head, with the score. Raises the errors of `withdraw`."""
        canonical, score = self._opened(envelope, KScore)
        head = self._head(score.manifest_cid)
        if score.base_cid != head.row.base_cid:
            raise BadDocument(f"was measured on {score.base_cid}, the head is for {head.row.base_cid}")
        self._record(head.row, Signed(KSCORE, head.row.head_cid, digest(canonical), canonical))
        return self._head(head.row.head_cid)

    def finish_proposals(self) -> bool:
        """Append the proposals that a crash or an absent ledger has left; returns False if the ledger is still away.

        A refused proposal is given up, unless the ledger may take it later: one that is dated ahead, or a withdrawal,
        whose key the ledger may come to trust. For one thread at a time.
        """
        with self._outage:
            for proposal in self._catalogue.proposals():
                try:
                    self._append(proposal)
                except (UntrustedSignature, BadDocument) as error:
                    self._settle_refused(proposal, error)
            return True
        return False

    def _settle_refused(self, proposal: Signed, error: UntrustedSignature | BadDocument) -> None:
        untrusted = isinstance(error, UntrustedSignature) and proposal.kind == WITHDRAWAL
        if not untrusted and not isinstance(error, DatedAhead):
            self._catalogue.retract(proposal)
            _log.warning("giving up a %s of %s: %s", proposal.kind, proposal.head_cid, error)
        elif (proposal, error.reason) not in self._kept:
            self._kept.add((proposal, error.reason))
            _log.warning("keeping a %s of %s until the ledger takes it: %s", proposal.kind, proposal.head_cid, error)

    def _record(self, row: HeadRow, document: Signed, check: Check = lambda first: None) -> Signed:
        """The document with this key in the ledger. A proposal that the ledger refuses is replaced."""
        for attempt in range(_ATTEMPTS):
            proposed = self._catalogue.propose(row, document, check)
            if proposed.ledger_index is not None:
                return proposed
            try:
                self._append(proposed)
            except (UntrustedSignature, BadDocument):
                self._catalogue.retract(proposed)
                if proposed.envelope == document.envelope or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return proposed
        raise AssertionError("the last attempt returns or raises")

    def _append(self, proposal: Signed) -> None:
        self._catalogue.confirm(proposal, self._log.append(proposal.envelope))

    def _opened(self, data: bytes, expected: type[_Document]) -> tuple[bytes, _Document]:
        """The canonical envelope and its document, signed by a trusted key."""
        try:
            envelope = Envelope.from_bytes(data)
            document: Document = open_document(envelope, self._trusted)
        except SignatureError as error:
            raise UntrustedSignature(str(error)) from error
        except LedgerError as error:
            raise BadDocument(str(error)) from error
        if not isinstance(document, expected):
            raise BadDocument(f"holds a {kind_of(document)}; expected {expected.type_name()}")
        return envelope.to_bytes(), document

    def _head(self, head_cid: str) -> CataloguedHead:
        head = self._catalogue.head(head_cid)
        if head is None:
            raise NotFound("head", head_cid, "it was not published here")
        return head


def _manifest(data: bytes) -> DraftHeadManifest:
    try:
        return DraftHeadManifest.from_bytes(data)
    except FormatError as error:
        problem = error.problem if error.field == "manifest" else f"{error.field}: {error.problem}"
        raise InvalidArgument("manifest", problem, reason="BAD_MANIFEST") from error
