"""RegistryService: convert, call, convert. Blocking calls run on worker threads, never on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from kolm.registry.v1 import heads_pb2
from kolm.registry.v1 import registry_pb2 as pb
from kolm.registry.v1.registry_pb2_grpc import RegistryServiceServicer
from ledger.documents.draft_head import KScore
from ledger.documents.signed_document import read_document
from ledger.encoding.text_forms import parse_cid
from ledger.errors import FormatError
from ledger.keys.envelope import Envelope
from services.registry.blobs import CHUNK_BYTES, BlobStore
from services.registry.head_catalogue import KSCORE, PUBLICATION, Catalogue, CataloguedHead, HeadFilter, Signed
from services.registry.publishing import Publishing, resolve
from services.registry.uploads import Part, Upload, Uploads
from services.runtime.access import caller
from services.runtime.calls import page_position, page_size, page_token
from services.runtime.errors import InvalidArgument, NotFound

SERVICE = "kolm.registry.v1.RegistryService"
_MOST_BLOBS = 1000
Context = grpc.aio.ServicerContext[Any, Any]


def _head_message(head: CataloguedHead) -> heads_pb2.Head:
    """A head with its confirmed documents."""
    withdrawal = head.withdrawal
    return heads_pb2.Head(
        manifest=head.row.manifest,
        publications=[heads_pb2.Publication(**_word(each)) for each in head.of_kind(PUBLICATION)],
        withdrawal=None if withdrawal is None else heads_pb2.Withdrawal(**_word(withdrawal)),
        kscores=[heads_pb2.KScore(**_word(each)) for each in _newest_scores(head.of_kind(KSCORE))],
    )


def _word(signed: Signed) -> dict[str, Any]:
    return {"envelope": signed.envelope, "ledger_index": signed.ledger_index}


def _newest_scores(scores: tuple[Signed, ...]) -> list[Signed]:
    """The newest score for each adapter, the bare base first; `scores` are in the order of the ledger."""
    newest: dict[str, Signed] = {}
    for signed in scores:
        score = read_document(Envelope.from_bytes(signed.envelope))
        assert isinstance(score, KScore)
        newest[score.adapter_cid or ""] = signed
    return [newest[adapter] for adapter in sorted(newest)]


class RegistryServicer(RegistryServiceServicer):
    """Serves one catalogue and its blobs."""

    def __init__(self, publishing: Publishing, catalogue: Catalogue, blobs: BlobStore, uploads: Uploads) -> None:
        self._publishing = publishing
        self._catalogue = catalogue
        self._blobs = blobs
        self._uploads = uploads

    async def PublishHead(self, request: pb.PublishHeadRequest, context: Context) -> pb.PublishHeadResponse:
        head, created = await asyncio.to_thread(self._publishing.publish, request.manifest, request.envelope)
        return pb.PublishHeadResponse(head=_head_message(head), created=created)

    async def GetHead(self, request: pb.GetHeadRequest, context: Context) -> pb.GetHeadResponse:
        _check_cid("head_cid", request.head_cid)
        head = await asyncio.to_thread(self._catalogue.head, request.head_cid)
        if head is None:
            raise NotFound("head", request.head_cid, "it was not published here")
        return pb.GetHeadResponse(head=_head_message(head))

    async def ListHeads(self, request: pb.ListHeadsRequest, context: Context) -> pb.ListHeadsResponse:
        return await asyncio.to_thread(self._list, request)

    async def ResolveHead(self, request: pb.ResolveHeadRequest, context: Context) -> pb.ResolveHeadResponse:
        base_cid = request.base_cid if request.HasField("base_cid") else None
        if base_cid is not None:
            _check_cid("base_cid", base_cid)
        head = await asyncio.to_thread(resolve, self._catalogue, request.reference, base_cid, request.include_withdrawn)
        return pb.ResolveHeadResponse(head=_head_message(head))

    async def WithdrawHead(self, request: pb.WithdrawHeadRequest, context: Context) -> pb.WithdrawHeadResponse:
        head = await asyncio.to_thread(self._publishing.withdraw, request.envelope)
        return pb.WithdrawHeadResponse(head=_head_message(head))

    async def RecordKScore(self, request: pb.RecordKScoreRequest, context: Context) -> pb.RecordKScoreResponse:
        head = await asyncio.to_thread(self._publishing.record_kscore, request.envelope)
        return pb.RecordKScoreResponse(head=_head_message(head))

    async def FindMissingBlobs(
        self, request: pb.FindMissingBlobsRequest, context: Context
    ) -> pb.FindMissingBlobsResponse:
        if len(request.blobs) > _MOST_BLOBS:
            raise InvalidArgument("blobs", f"expected at most {_MOST_BLOBS}, got {len(request.blobs)}")
        digests = [_digest(f"blobs[{place}].digest", blob.digest) for place, blob in enumerate(request.blobs)]
        missing = await asyncio.to_thread(self._missing, digests, request)
        return pb.FindMissingBlobsResponse(missing=missing)

    async def UploadBlob(
        self, request_iterator: AsyncIterator[pb.UploadBlobRequest], context: Context
    ) -> pb.UploadBlobResponse:
        start = await _start(request_iterator)
        digest, size = _digest("start.blob.digest", start.blob.digest), start.blob.size
        if not await asyncio.to_thread(self._blobs.is_whole, digest, size):
            part = Part(digest, size, caller().name)
            begun = asyncio.ensure_future(asyncio.to_thread(self._uploads.begin, part, start.offset))
            try:
                await self._receive(await asyncio.shield(begun), request_iterator)
            finally:  # also if a call was cut off while a thread still reads or writes
                await asyncio.shield(self._end(begun))
        return pb.UploadBlobResponse(blob=start.blob)

    async def DownloadBlob(
        self, request: pb.DownloadBlobRequest, context: Context
    ) -> AsyncIterator[pb.DownloadBlobResponse]:
        digest = _digest("digest", request.digest)
        size = await asyncio.to_thread(self._blobs.size, digest)
        if size is None:
            raise NotFound("blob", digest)
        if request.offset > size:
            raise InvalidArgument("offset", f"is {request.offset}; the blob has {size} bytes")
        first, chunks = True, self._blobs.chunks(digest, request.offset)
        while (data := await asyncio.to_thread(next, chunks, None)) is not None:
            yield pb.DownloadBlobResponse(data=data, size=size if first else 0)
            first = False

    def _list(self, request: pb.ListHeadsRequest) -> pb.ListHeadsResponse:
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
        return pb.ListHeadsResponse(heads=map(_head_message, page), next_page_token=token)

    def _missing(self, digests: list[str], request: pb.FindMissingBlobsRequest) -> list[pb.MissingBlob]:
        owner = caller().name
        return [
            pb.MissingBlob(blob=blob, committed_size=self._uploads.committed(Part(digest, blob.size, owner)))
            for digest, blob in zip(digests, request.blobs, strict=True)
            if not self._blobs.may_be_whole(digest, blob.size)
        ]

    async def _end(self, begun: asyncio.Future[Upload]) -> None:
        await asyncio.wait([begun])
        if begun.exception() is None:
            await asyncio.to_thread(self._uploads.end, begun.result())

    async def _receive(self, upload: Upload, messages: AsyncIterator[pb.UploadBlobRequest]) -> None:
        while not upload.complete:
            message = await anext(messages, None)
            if message is None:
                raise InvalidArgument("data", "ends before the blob does; continue from the committed size")
            if not 1 <= len(message.data) <= CHUNK_BYTES:
                raise InvalidArgument("data", f"expected 1 to {CHUNK_BYTES} bytes, got {len(message.data)}")
            await asyncio.to_thread(upload.write, message.data)
        await asyncio.to_thread(upload.finish, self._blobs)


async def _start(messages: AsyncIterator[pb.UploadBlobRequest]) -> pb.UploadStart:
    first = await anext(messages, None)
    if first is None or first.WhichOneof("part") != "start":
        raise InvalidArgument("start", "expected as the first message")
    if first.start.blob.size < 1:
        raise InvalidArgument("start.blob.size", "expected at least 1 byte")
    return first.start


def _digest(field: str, value: bytes) -> str:
    if len(value) != 32:
        raise InvalidArgument(field, f"expected the 32 bytes of a SHA-256, got {len(value)}")
    return "sha256:" + value.hex()


def _check_cid(field: str, value: str) -> None:
    try:
        parse_cid(value, field)
    except FormatError as error:
        raise InvalidArgument(field, error.problem) from error
