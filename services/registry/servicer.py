"""RegistryService: convert, call, convert. Blocking calls run on worker threads, never on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from kolm.registry.v1 import heads_pb2, registry_pb2
from kolm.registry.v1 import heads_pb2 as pb
from kolm.registry.v1.registry_pb2_grpc import RegistryServiceServicer
from ledger.documents.draft_head import GOOD, DraftHeadPublication, DraftHeadWithdrawal, KScore
from ledger.documents.manifests import DraftHeadManifest
from ledger.documents.signed_document import Document, read_document
from ledger.encoding.text_forms import parse_cid, parse_digest, parse_timestamp
from ledger.errors import FormatError
from ledger.keys.envelope import Envelope
from services.registry.blob_collection import BlobCollection, Summary
from services.registry.blobs import CHUNK_BYTES, BlobStore, StoredBlob
from services.registry.catalogue import KSCORE, PUBLICATION, Catalogue, CataloguedHead, HeadFilter, Signed
from services.registry.publishing import Publishing, resolve
from services.registry.uploads import Part, Upload, Uploads
from services.runtime.access import caller
from services.runtime.calls import page_position, page_size, page_token
from services.runtime.errors import InvalidArgument, NotFound


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


SERVICE = "kolm.registry.v1.RegistryService"

_MOST_BLOBS = 1000

Context = grpc.aio.ServicerContext[Any, Any]


class RegistryServicer(RegistryServiceServicer):
    """Serves one catalogue and its blobs."""

    def __init__(
        self,
        publishing: Publishing,
        catalogue: Catalogue,
        blobs: BlobStore,
        uploads: Uploads,
    ) -> None:
        self._publishing = publishing
        self._catalogue = catalogue
        self._blobs = blobs
        self._uploads = uploads

    async def PublishHead(
        self, request: registry_pb2.PublishHeadRequest, context: Context
    ) -> registry_pb2.PublishHeadResponse:
        head, created = await asyncio.to_thread(self._publishing.publish, request.manifest, request.envelope)
        return registry_pb2.PublishHeadResponse(head=head_message(head), created=created)

    async def GetHead(self, request: registry_pb2.GetHeadRequest, context: Context) -> registry_pb2.GetHeadResponse:
        _check_cid("head_cid", request.head_cid)
        head = await asyncio.to_thread(self._catalogue.head, request.head_cid)
        if head is None:
            raise NotFound("head", request.head_cid, "nobody has published it here")
        return registry_pb2.GetHeadResponse(head=head_message(head))

    async def ListHeads(
        self, request: registry_pb2.ListHeadsRequest, context: Context
    ) -> registry_pb2.ListHeadsResponse:
        return await asyncio.to_thread(self._list, request)

    async def ResolveHead(
        self, request: registry_pb2.ResolveHeadRequest, context: Context
    ) -> registry_pb2.ResolveHeadResponse:
        base_cid = request.base_cid if request.HasField("base_cid") else None
        if base_cid is not None:
            _check_cid("base_cid", base_cid)
        head = await asyncio.to_thread(resolve, self._catalogue, request.reference, base_cid, request.include_withdrawn)
        return registry_pb2.ResolveHeadResponse(head=head_message(head))

    async def WithdrawHead(
        self, request: registry_pb2.WithdrawHeadRequest, context: Context
    ) -> registry_pb2.WithdrawHeadResponse:
        head = await asyncio.to_thread(self._publishing.withdraw, request.envelope)
        return registry_pb2.WithdrawHeadResponse(head=head_message(head))

    async def RecordKScore(
        self, request: registry_pb2.RecordKScoreRequest, context: Context
    ) -> registry_pb2.RecordKScoreResponse:
        head = await asyncio.to_thread(self._publishing.record_kscore, request.envelope)
        return registry_pb2.RecordKScoreResponse(head=head_message(head))

    async def FindMissingBlobs(
        self, request: registry_pb2.FindMissingBlobsRequest, context: Context
    ) -> registry_pb2.FindMissingBlobsResponse:
        if len(request.blobs) > _MOST_BLOBS:
            raise InvalidArgument("blobs", f"expected at most {_MOST_BLOBS}, got {len(request.blobs)}")
        digests = [_digest(f"blobs[{place}].digest", blob.digest) for place, blob in enumerate(request.blobs)]
        missing = await asyncio.to_thread(self._missing, digests, request)
        return registry_pb2.FindMissingBlobsResponse(missing=missing)

    async def UploadBlob(
        self, request_iterator: AsyncIterator[registry_pb2.UploadBlobRequest], context: Context
    ) -> registry_pb2.UploadBlobResponse:
        start = await _start(request_iterator)
        digest, size = _digest("start.blob.digest", start.blob.digest), start.blob.size
        if await asyncio.to_thread(self._blobs.size, digest) != size:
            upload = await asyncio.to_thread(self._uploads.begin, Part(digest, size, caller().name), start.offset)
            try:
                await self._receive(upload, request_iterator)
            finally:  # also where a call was cut off while a thread still writes
                await asyncio.shield(asyncio.to_thread(self._uploads.end, upload))
        return registry_pb2.UploadBlobResponse(blob=start.blob)

    async def DownloadBlob(
        self, request: registry_pb2.DownloadBlobRequest, context: Context
    ) -> AsyncIterator[registry_pb2.DownloadBlobResponse]:
        digest = _digest("digest", request.digest)
        size = await asyncio.to_thread(self._blobs.size, digest)
        if size is None:
            raise NotFound("blob", digest)
        if request.offset > size:
            raise InvalidArgument("offset", f"is {request.offset}; the blob has {size} bytes")
        first, chunks = True, self._blobs.chunks(digest, request.offset)
        while (data := await asyncio.to_thread(next, chunks, None)) is not None:
            yield registry_pb2.DownloadBlobResponse(data=data, size=size if first else 0)
            first = False

    async def CollectBlobs(
        self, request: registry_pb2.CollectBlobsRequest, context: Context
    ) -> AsyncIterator[registry_pb2.CollectBlobsResponse]:
        collection = BlobCollection(self._catalogue, self._blobs, _long_ago(request), dry_run=request.dry_run)
        batches = iter(collection)
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield registry_pb2.CollectBlobsResponse(removed=map(blob_message, batch))
        yield registry_pb2.CollectBlobsResponse(summary=summary_message(collection.summary))

    def _list(self, request: registry_pb2.ListHeadsRequest) -> registry_pb2.ListHeadsResponse:
        narrow = HeadFilter(
            base_cid=request.base_cid if request.HasField("base_cid") else None,
            name=request.name if request.HasField("name") else None,
            withdrawn=request.include_withdrawn,
        )
        filters = repr((narrow.base_cid, narrow.name, narrow.withdrawn)).encode()
        start, size = page_position(request.page_token, "heads", filters), page_size(request.page_size)
        found = self._catalogue.heads(narrow, after=min(start, 2**63 - 1) - 1, limit=size + 1)
        page = found[:size]
        token = page_token("heads", filters, page[-1].position + 1) if len(found) > size else ""
        return registry_pb2.ListHeadsResponse(heads=_messages(page), next_page_token=token)

    def _missing(
        self, digests: list[str], request: registry_pb2.FindMissingBlobsRequest
    ) -> list[registry_pb2.MissingBlob]:
        owner = caller().name
        return [
            registry_pb2.MissingBlob(blob=blob, committed_size=self._uploads.committed(Part(digest, blob.size, owner)))
            for digest, blob in zip(digests, request.blobs, strict=True)
            if self._blobs.size(digest) != blob.size
        ]

    async def _receive(self, upload: Upload, messages: AsyncIterator[registry_pb2.UploadBlobRequest]) -> None:
        while not upload.complete:
            message = await anext(messages, None)
            if message is None:
                raise InvalidArgument("data", "ends before the blob does; go on from the committed size")
            if not 1 <= len(message.data) <= CHUNK_BYTES:
                raise InvalidArgument("data", f"expected 1 to {CHUNK_BYTES} bytes, got {len(message.data)}")
            await asyncio.to_thread(upload.write, message.data)
        await asyncio.to_thread(upload.finish, self._blobs)


async def _start(messages: AsyncIterator[registry_pb2.UploadBlobRequest]) -> registry_pb2.UploadStart:
    first = await anext(messages, None)
    if first is None or first.WhichOneof("part") != "start":
        raise InvalidArgument("start", "expected as the first message")
    if first.start.blob.size < 1:
        raise InvalidArgument("start.blob.size", "expected at least 1 byte")
    return first.start


def _long_ago(request: registry_pb2.CollectBlobsRequest) -> datetime:
    if not request.HasField("older_than"):
        raise InvalidArgument("older_than", "expected how long ago a blob has to be written to be removed")
    try:
        age = request.older_than.ToTimedelta()
        before = datetime.now(UTC) - age
    except (ValueError, OverflowError) as error:
        raise InvalidArgument("older_than", f"is no length of time that reaches back from now: {error}") from error
    if age < timedelta(0):
        raise InvalidArgument("older_than", "expected no less than 0 seconds")
    return before


def _messages(heads: list[CataloguedHead] | tuple[CataloguedHead, ...] | Any) -> list[heads_pb2.Head]:
    return [head_message(head) for head in heads]


def _digest(field: str, value: bytes) -> str:
    if len(value) != 32:
        raise InvalidArgument(field, f"expected the 32 bytes of a SHA-256, got {len(value)}")
    return "sha256:" + value.hex()


def _check_cid(field: str, value: str) -> None:
    try:
        parse_cid(value, field)
    except FormatError as error:
        raise InvalidArgument(field, error.problem) from error
