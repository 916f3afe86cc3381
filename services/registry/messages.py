"""The catalogue's values to messages. The bytes beside them count; these fields are a reading aid."""

from __future__ import annotations

from dataclasses import asdict

from google.protobuf.timestamp_pb2 import Timestamp

from kolm.registry.v1 import heads_pb2 as pb
from kolm.registry.v1 import registry_pb2
from ledger.documents.draft_head_manifest import DraftHeadManifest
from ledger.documents.draft_head_publication import DraftHeadPublication, DraftHeadWithdrawal
from ledger.documents.kscore import GOOD, KScore
from ledger.documents.signed_document import Document, read_document
from ledger.encoding.digest import parse_digest
from ledger.encoding.timestamp import parse_timestamp
from ledger.keys.envelope import Envelope
from services.registry.blob_collection import Summary
from services.registry.blobs import StoredBlob
from services.registry.catalogue import KSCORE, PUBLICATION, CataloguedHead, Signed


def head_message(head: CataloguedHead) -> pb.Head:
    """A head with everything that is on record about it."""
    withdrawal = head.withdrawal
    return pb.Head(
        head_cid=head.row.head_cid,
        base_cid=head.row.base_cid,
        manifest=head.row.manifest,
        size=DraftHeadManifest.from_bytes(head.row.manifest).size,
        publications=[_publication(signed) for signed in head.of_kind(PUBLICATION)],
        withdrawal=None if withdrawal is None else _withdrawal(withdrawal),
        kscores=_newest_scores(head.of_kind(KSCORE)),
    )


def blob_message(blob: StoredBlob) -> pb.Blob:
    """Its digest and size."""
    return pb.Blob(digest=parse_digest(blob.digest), size=blob.size)


def summary_message(summary: Summary) -> registry_pb2.CollectionSummary:
    """The counts of a collection."""
    return registry_pb2.CollectionSummary(**asdict(summary))


def _publication(signed: Signed) -> pb.Publication:
    document = _document(signed)
    assert isinstance(document, DraftHeadPublication)
    return pb.Publication(
        name=document.name,
        envelope=signed.envelope,
        ledger_index=signed.ledger_index or 0,
        publisher=document.publisher,
        issue_time=_time(document.issued_at),
    )


def _withdrawal(signed: Signed) -> pb.Withdrawal:
    document = _document(signed)
    assert isinstance(document, DraftHeadWithdrawal)
    return pb.Withdrawal(
        envelope=signed.envelope,
        ledger_index=signed.ledger_index or 0,
        reason=document.reason,
        issue_time=_time(document.issued_at),
    )


def _newest_scores(scores: tuple[Signed, ...]) -> list[pb.KScore]:
    """One for each adapter, the bare base first; `scores` come in the order of the ledger."""
    newest = {message.adapter_cid: message for message in map(_kscore, scores)}
    return [newest[adapter] for adapter in sorted(newest)]


def _kscore(signed: Signed) -> pb.KScore:
    document = _document(signed)
    assert isinstance(document, KScore)
    return pb.KScore(
        adapter_cid=document.adapter_cid,
        mean_acceptance=document.mean_acceptance,
        status=pb.K_SCORE_STATUS_GOOD if document.status == GOOD else pb.K_SCORE_STATUS_NEEDS_RETRAINING,
        envelope=signed.envelope,
        ledger_index=signed.ledger_index or 0,
        measure_time=_time(document.measured_at),
    )


def _document(signed: Signed) -> Document:
    return read_document(Envelope.from_bytes(signed.envelope))


def _time(text: str) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(parse_timestamp(text))
    return message
