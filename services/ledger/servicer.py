"""LedgerService: convert, call the ledger, convert. Blocking calls run on worker threads, never on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing, suppress
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from kolm.ledger.v1 import ledger_pb2
from kolm.ledger.v1.ledger_pb2_grpc import LedgerServiceServicer
from ledger.documents.erasure import Erasure
from ledger.documents.signed_document import Document, kind_of, sign_document
from ledger.errors import ContentDamaged, StoreError
from ledger.keys.signer import Signer
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.reader import LedgerReader
from ledger.log.sequencer import Sequencer
from ledger.log.writer import Appended
from ledger.tree.merkle import HashReader
from services.ledger import list_pages, messages
from services.ledger.checkpoints import Checkpoints
from services.ledger.entry_stream import EntryStream
from services.ledger.intake import Growth, Intake, require_operator
from services.ledger.ledger_errors import ledger_errors
from services.ledger.reads import LogReads, bundle_pieces
from services.ledger.visibility import whole_log
from services.runtime.access import caller
from services.runtime.errors import InvalidArgument, Unavailable
from services.runtime.process import Outage

_log = logging.getLogger(__name__)

SERVICE = "kolm.ledger.v1.LedgerService"

_EXPORT_THREADS = 2
"""Threads for bundles alone, so that lists and proofs do not wait for them."""

_LOOK_SECONDS = 1.0
"""Between looks of a following watch: a probe that recovers a failed batch publishes entries that no caller awaits."""

_Value = TypeVar("_Value")

Context = grpc.aio.ServicerContext[Any, Any]


class LedgerServicer(LedgerServiceServicer):
    """Serves one ledger. `close` and `takes_entries` are called on the event loop that serves it."""

    def __init__(
        self,
        sequencer: Sequencer,
        reader: LedgerReader,
        hashes: HashReader,
        trusted: TrustedKeys,
        log_key: Signer,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self._sequencer = sequencer
        self._reader = reader
        self._reads = LogReads(reader, hashes, log_key)
        self._trusted = trusted
        self._log_key = log_key
        self._checkpoints = checkpoints or Checkpoints(reader)
        self._exports = ThreadPoolExecutor(_EXPORT_THREADS, "ledger-export")
        self._growth = Growth()
        self._intake = Intake(sequencer, self._growth)
        self._streams: set[EntryStream] = set()
        self._unreadable = Outage(_log, "read the database")
        self._closing = False

    @property
    def reader(self) -> LedgerReader:
        """The reader of the served ledger."""
        return self._reader

    def close(self) -> None:
        """End every following watch and every stream of entries, so that the server can stop. Other calls continue."""
        self._closing = True
        self._growth.announce()
        for stream in self._streams:
            stream.stop()

    def takes_entries(self) -> bool:
        """Whether entries are accepted: False while the database takes no writes (a full disk), and after the sequencer
        has stopped by itself, because the database contradicts the log or another process writes to it.
        """
        return self._sequencer.takes_entries

    async def append_own(self, document: Document) -> int:
        """Sign an entry as the log and append it; returns its index. Raises LedgerError. On the event loop."""
        return (await self._append_own(document)).index

    def _append_own(self, document: Document) -> asyncio.Future[Appended]:
        return self._intake.queue(self._sequencer.admit(sign_document(document, self._log_key).to_bytes()))

    async def AppendEntry(
        self, request: ledger_pb2.AppendEntryRequest, context: Context
    ) -> ledger_pb2.AppendEntryResponse:
        with ledger_errors("entry", "with this receipt_id"):
            appended = await self._intake.one(request, caller())
        return messages.appended_message(appended)

    async def AppendEntries(
        self, request_iterator: AsyncIterator[ledger_pb2.AppendEntriesRequest], context: Context
    ) -> AsyncIterator[ledger_pb2.AppendEntriesResponse]:
        stream = EntryStream(request_iterator, self._intake.stream(caller()))
        self._streams.add(stream)
        try:
            async with aclosing(stream.answers()) as answers:
                async for answer in answers:
                    yield answer
        finally:
            self._streams.discard(stream)

    async def EraseContent(
        self, request: ledger_pb2.EraseContentRequest, context: Context
    ) -> ledger_pb2.EraseContentResponse:
        if request.receipt_id and not request.envelope:
            asked = await self._read("receipt", request.receipt_id, self._reads.erasure, request.receipt_id)
            with ledger_errors("receipt", request.receipt_id):
                appended = await self._append_own(asked)
            return ledger_pb2.EraseContentResponse(appended=messages.appended_message(appended))
        require_operator(caller())
        with ledger_errors("receipt", "named by the erasure"):
            admitted = self._sequencer.admit(request.envelope)
            if not isinstance(admitted.document, Erasure):
                found = f"expected a kolm.erasure.v1 document, got a {kind_of(admitted.document)}"
                raise InvalidArgument("envelope", found, reason="BAD_DOCUMENT")
            appended = await self._intake.queue(admitted)
        return ledger_pb2.EraseContentResponse(appended=messages.appended_message(appended))

    async def GetEntry(self, request: ledger_pb2.GetEntryRequest, context: Context) -> ledger_pb2.GetEntryResponse:
        return await self._read("entry", request.index, self._reads.entry, request.index)

    async def GetReceipt(
        self, request: ledger_pb2.GetReceiptRequest, context: Context
    ) -> ledger_pb2.GetReceiptResponse:
        read = partial(self._reads.receipt, request.receipt_id, content=request.include_content)
        return await self._read("receipt", request.receipt_id, read)

    async def ListReceipts(
        self, request: ledger_pb2.ListReceiptsRequest, context: Context
    ) -> ledger_pb2.ListReceiptsResponse:
        return await self._read("receipts", "", list_pages.list_receipts, self._reader, request, caller())

    async def ListVerdicts(
        self, request: ledger_pb2.ListVerdictsRequest, context: Context
    ) -> ledger_pb2.ListVerdictsResponse:
        return await self._read("verdicts", "", list_pages.list_verdicts, self._reader, request, caller())

    async def WatchEntries(
        self, request: ledger_pb2.WatchEntriesRequest, context: Context
    ) -> AsyncIterator[ledger_pb2.WatchEntriesResponse]:
        position, kinds = request.start_index, _watched_kinds(request)
        if not kinds:
            whole_log(caller(), "a watch of every kind")
        while True:
            grown = self._growth.next()
            entries, position = await self._read("entry", position, self._reads.entries_from, position, kinds)
            for entry in entries:
                yield ledger_pb2.WatchEntriesResponse(entry=entry)
            if position < self._reader.head().size:
                continue
            if not request.follow:
                return
            if self._closing:
                raise Unavailable("the ledger is shutting down; watch again from the next index")
            with suppress(TimeoutError):
                await asyncio.wait_for(grown.wait(), _LOOK_SECONDS)

    async def GetCheckpoint(
        self, request: ledger_pb2.GetCheckpointRequest, context: Context
    ) -> ledger_pb2.GetCheckpointResponse:
        read = self._checkpoints.witnessed if request.witnessed else self._checkpoints.newest
        return messages.checkpoint_message(await self._read("witnessed checkpoint", "of this log", read))

    async def GetInclusionProof(
        self, request: ledger_pb2.GetInclusionProofRequest, context: Context
    ) -> ledger_pb2.GetInclusionProofResponse:
        head = self._reader.head()
        size = request.tree_size or head.size
        name = f"{request.index} in a tree of {size}"
        return await self._read("entry", name, self._reads.inclusion, request.index, size, head.note)

    async def GetCoseReceipt(
        self, request: ledger_pb2.GetCoseReceiptRequest, context: Context
    ) -> ledger_pb2.GetCoseReceiptResponse:
        return await self._read("receipt", request.receipt_id, self._reads.cose_receipt, request.receipt_id)

    async def AnswerPromise(
        self, request: ledger_pb2.AnswerPromiseRequest, context: Context
    ) -> ledger_pb2.AnswerPromiseResponse:
        return await self._read("promise", "", self._reads.promise_answer, request.promise)

    async def GetConsistencyProof(
        self, request: ledger_pb2.GetConsistencyProofRequest, context: Context
    ) -> ledger_pb2.GetConsistencyProofResponse:
        head = self._reader.head()
        first, second = request.first_tree_size, request.second_tree_size or head.size
        name = f"of {first} and {second} entries"
        return await self._read("trees", name, self._reads.consistency, first, second, head.note)

    async def GetTile(self, request: ledger_pb2.GetTileRequest, context: Context) -> ledger_pb2.GetTileResponse:
        name = f"{request.level}/{request.number}"
        hashes = await self._read("tile", name, self._reader.tile, request.level, request.number)
        return ledger_pb2.GetTileResponse(hashes=hashes)

    async def GetHaltState(
        self, request: ledger_pb2.GetHaltStateRequest, context: Context
    ) -> ledger_pb2.GetHaltStateResponse:
        head, answered = self._reader.head(), Timestamp()
        answered.FromDatetime(datetime.now(UTC))
        return ledger_pb2.GetHaltStateResponse(
            epoch=head.halts.epoch,
            halts=map(messages.halt_message, head.halts.open),
            tree_size=head.size,
            answer_time=answered,
        )

    async def ExportBundle(
        self, request: ledger_pb2.ExportBundleRequest, context: Context
    ) -> AsyncIterator[ledger_pb2.ExportBundleResponse]:
        name = ", ".join(request.receipt_ids) or f"[{request.start_index}, {request.end_index})"
        about = (self._reader, self._trusted, request, self._checkpoints, caller())
        pieces = await self._read("receipts or range", name, bundle_pieces, *about, threads=self._exports)
        while piece := await self._read("receipts or range", name, next, pieces, b"", threads=self._exports):
            yield ledger_pb2.ExportBundleResponse(data=piece)

    async def _read(
        self, resource: str, name: object, read: Callable[..., _Value], *arguments: object,
        threads: Executor | None = None,
    ) -> _Value:  # fmt: skip
        """`read(*arguments)` on a worker thread; `resource` and `name` describe the object in a NotFound."""
        here = copy_context()  # with the caller
        with ledger_errors(resource, str(name)):
            try:
                value = await asyncio.get_running_loop().run_in_executor(threads, partial(here.run, read, *arguments))
            except ContentDamaged:  # logged with its receipt; the database can be read
                raise
            except StoreError as error:
                self._unreadable.failed(error)
                raise
            self._unreadable.recovered()
            return value


def _watched_kinds(request: ledger_pb2.WatchEntriesRequest) -> tuple[str, ...]:
    try:
        return messages.kind_names(request.kinds)
    except ValueError as error:
        raise InvalidArgument("kinds", str(error)) from None
