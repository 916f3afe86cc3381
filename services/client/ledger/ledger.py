"""The client of a ledger server.

with LedgerClient.connect("127.0.0.1:50052") as ledger:
    index = ledger.append(envelope).index
    for receipt in ledger.receipts(ReceiptFilter(tenant="acme")): ...
    with ledger.watch(index, follow=True) as entries:
        for entry in entries: ...
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from kolm.ledger.v1 import documents_pb2
from kolm.ledger.v1 import ledger_pb2 as pb
from kolm.ledger.v1.ledger_pb2_grpc import LedgerServiceStub
from ledger.errors import FormatError
from ledger.log.receipt_filter import ReceiptFilter
from services.client.channel import Client, Stream, deadline, plain_value
from services.client.errors import KolmError
from services.client.ledger import log_wire
from services.client.ledger.log import (
    Appended,
    ConsistencyProof,
    CoseReceipt,
    HaltState,
    LogEntry,
    ProvenEntry,
    ReceiptDetails,
    ReceiptEntry,
    ReceiptPage,
    SignedCheckpoint,
    VerdictEntry,
    VerdictPage,
)

if TYPE_CHECKING:
    from ledger.documents.content import Content

ANY = ReceiptFilter()
"""The filter that every receipt passes."""


_KEYS_SECONDS = 2.0

MOST_ROWS = 1000
"""Most rows of one window; with more, a shorter window is read first."""

_GROWTH = 8


class LedgerClient(Client):
    """One connection to a ledger server. Every method raises KolmError; unary calls give up after `timeout` seconds."""

    service, seconds, stub = "kolm.ledger.v1.LedgerService", 30.0, LedgerServiceStub
    _stub: LedgerServiceStub

    def append(self, envelope: bytes, content: Content | None = None) -> Appended:
        """Append a signed document; returns once it is durable. The same envelope again gets the same index."""
        message = None if content is None else log_wire.content_message(content)
        request = pb.AppendEntryRequest(envelope=envelope, content=message)
        return plain_value(Appended, self._call(self._stub.AppendEntry, request))

    def erase(self, envelope: bytes) -> Appended:
        """Append a signed `kolm.erasure.v1`; its receipt's content is gone once this returns. Role: operate."""
        request = pb.EraseContentRequest(envelope=envelope)
        return plain_value(Appended, self._call(self._stub.EraseContent, request).appended)

    def erase_own(self, receipt_id: str) -> Appended:
        """Have the content of a receipt erased, by a token of its tenant; the log signs that the tenant asked."""
        request = pb.EraseContentRequest(receipt_id=receipt_id)
        return plain_value(Appended, self._call(self._stub.EraseContent, request).appended)

    def export(
        self,
        receipt_ids: Iterable[str] = (),
        *,
        start_index: int | None = None,
        end_index: int | None = None,
        include_content: bool = False,
    ) -> Stream[bytes]:
        """A bundle as the pieces of a .tar.gz: of receipts, of the range [start_index, end_index), or of everything."""
        request = pb.ExportBundleRequest(
            receipt_ids=receipt_ids, start_index=start_index, end_index=end_index, include_content=include_content
        )
        call = self._stub.ExportBundle(request, metadata=self.connection.metadata)
        return Stream(call, lambda message: message.data)

    def entry(self, index: int) -> LogEntry:
        """One leaf with its proof. Raises NotFound past the end. `VerifiedLedger.entry` checks the proof."""
        answer = self._call(self._stub.GetEntry, pb.GetEntryRequest(index=index))
        return plain_value(LogEntry, answer, entry=answer.entry.entry)

    def receipt(self, receipt_id: str, *, include_content: bool = False) -> ReceiptDetails:
        """A receipt with its proof and the verdicts on it; with its content for auditors and its own tenant.

        `VerifiedLedger.receipt` checks the proof.
        """
        request = pb.GetReceiptRequest(receipt_id=receipt_id, include_content=include_content)
        return log_wire.receipt_details(self._call(self._stub.GetReceipt, request))

    def receipts(self, narrow: ReceiptFilter = ANY, *, page_size: int = 0) -> Iterator[ReceiptEntry]:
        """Every matching receipt, oldest first; pages are fetched as the iteration gets there.

        Trusts the server. `VerifiedLedger.receipts` checks the proofs.
        """
        pages = self.receipt_pages(narrow, page_size=page_size)
        return (receipt for page in pages for receipt in page.receipts)

    def receipt_pages(
        self, narrow: ReceiptFilter, *, page_size: int = 0, complete: bool = False
    ) -> Iterator[ReceiptPage]:
        """The pages of a list with their proofs; `complete` also asks for proof that nothing was left out."""
        request = log_wire.receipts_request(narrow, page_size, complete=complete)
        return map(log_wire.receipt_page, self._pages(self._stub.ListReceipts, request))

    def verdicts(
        self, *, receipt_id: str | None = None, outcome: str | None = None, page_size: int = 0
    ) -> Iterator[VerdictEntry]:
        """Every matching verdict, oldest first. `outcome` is EXACT, DEVIATION or UNREPLAYABLE."""
        number = log_wire.outcome_number(outcome)
        request = pb.ListVerdictsRequest(receipt_id=receipt_id, outcome=number, page_size=page_size)
        pages = self._pages(self._stub.ListVerdicts, request)
        return (plain_value(VerdictEntry, each) for page in pages for each in page.verdicts)

    def newest_verdicts(self, *, outcome: str | None = None, page_size: int = 0, page_token: str = "") -> VerdictPage:
        """One page, newest first; `page_token` is the `next_page_token` of the page before, at any later time."""
        number = log_wire.outcome_number(outcome)
        request = pb.ListVerdictsRequest(
            outcome=number, page_size=page_size, page_token=page_token, order_by="index desc"
        )
        return plain_value(VerdictPage, self._call(self._stub.ListVerdicts, request))

    def watch(
        self, start_index: int = 0, *, follow: bool = False, kinds: Collection[str] = (), timeout: float | None = None
    ) -> Stream[LogEntry]:
        """Entries in order, none left out; with `follow` also those to come, until the stream is closed or `timeout`
        seconds have passed.

        `kinds` narrows to some kinds of document, as `LogEntry.kind` names them; not to receipts or verdicts. Such a
        read without `follow` is short, and gives up as unary calls do.
        """
        if kinds and not follow and timeout is None:
            timeout = self._timeout
        numbers = [documents_pb2.EntryKind.Value(f"ENTRY_KIND_{kind.upper()}") for kind in kinds]
        request = pb.WatchEntriesRequest(start_index=start_index, follow=follow, kinds=numbers)
        call = self._stub.WatchEntries(request, timeout=deadline(timeout), metadata=self.connection.metadata)
        return Stream(call, lambda message: LogEntry(message.entry.entry))

    def checkpoint(self, *, witnessed: bool = False) -> SignedCheckpoint:
        """The newest signed tree head, or the newest that the server counts as witnessed; NotFound without one."""
        request = pb.GetCheckpointRequest(witnessed=witnessed)
        return log_wire.signed_checkpoint(self._call(self._stub.GetCheckpoint, request))

    def inclusion_proof(self, index: int, tree_size: int = 0) -> ProvenEntry:
        """The proof that entry `index` is in the tree of `tree_size` entries; 0 is the newest tree."""
        request = pb.GetInclusionProofRequest(index=index, tree_size=tree_size)
        return plain_value(ProvenEntry, self._call(self._stub.GetInclusionProof, request))

    def cose_receipt(self, receipt_id: str) -> CoseReceipt:
        """The log's COSE Receipt (RFC 9942) that its newest tree holds a receipt's entry."""
        request = pb.GetCoseReceiptRequest(receipt_id=receipt_id)
        return plain_value(CoseReceipt, self._call(self._stub.GetCoseReceipt, request))

    def promise_answer(self, promise: bytes) -> tuple[bytes, bytes]:
        """The log's signed answer about the receipts of a promise, and its checkpoint, both unchecked."""
        response = self._call(self._stub.AnswerPromise, pb.AnswerPromiseRequest(promise=promise))
        return response.answer, response.checkpoint

    def consistency_proof(self, first_tree_size: int, second_tree_size: int = 0) -> ConsistencyProof:
        """The proof that the second tree only appended to the first; 0 as second is the newest tree."""
        request = pb.GetConsistencyProofRequest(first_tree_size=first_tree_size, second_tree_size=second_tree_size)
        return log_wire.consistency_proof(self._call(self._stub.GetConsistencyProof, request))

    def tile(self, level: int, number: int) -> bytes:
        """The hashes of a C2SP tlog-tile, 32 bytes each, as many as it has by now; NotFound if it is missing."""
        return self._call(self._stub.GetTile, pb.GetTileRequest(level=level, number=number)).hashes

    def halt_state(self) -> HaltState:
        """The open halts."""
        return plain_value(HaltState, self._call(self._stub.GetHaltState, pb.GetHaltStateRequest()))


def key_entries(address: str) -> Sequence[tuple[int, bytes]]:
    """Index and envelope of each key entry of a log, unchecked. Raises ConnectionError without an answer within 2 s."""
    try:
        with (
            closing(LedgerClient.connect(address)) as ledger,
            ledger.watch(kinds=["key"], timeout=_KEYS_SECONDS) as entries,
        ):
            return [(entry.index, entry.envelope.to_bytes()) for entry in entries]
    except (KolmError, FormatError) as error:
        raise ConnectionError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Newest:
    """Receipts, the newest first. `older`: entries below `reached` have not been read."""

    receipts: tuple[ReceiptEntry, ...]
    reached: int
    older: bool


def newest_receipts(
    list_: Callable[[ReceiptFilter], Iterable[ReceiptEntry]], query: ReceiptFilter, end: int, limit: int
) -> Newest:
    """At most `limit` matches below entry `end`. Looks at windows, downwards, that grow while they hold too little."""
    lowest = query.min_index or 0
    end = end if query.max_index is None else min(end, query.max_index + 1)
    found: list[ReceiptEntry] = []
    window = 2 * limit
    while end > lowest and len(found) < limit:
        start = max(lowest, end - window)
        rows = list(islice(list_(replace(query, min_index=start, max_index=end - 1)), MOST_ROWS + 1))
        if len(rows) > MOST_ROWS and window > MOST_ROWS:
            window = max(window // _GROWTH, min(limit, MOST_ROWS))
            continue
        found += reversed(rows)
        end, window = start, window * _GROWTH
    kept = tuple(found[:limit])
    reached = kept[-1].index if len(found) >= limit else end
    return Newest(kept, reached, older=reached > lowest)
