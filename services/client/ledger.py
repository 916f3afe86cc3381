"""The client of a ledger server.

with LedgerClient.connect("127.0.0.1:50052") as ledger:
    index = ledger.append(envelope).index
    for receipt in ledger.receipts(tenant="acme"): ...
    with ledger.watch(index, follow=True) as entries:
        for entry in entries: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

from kolm.ledger.v1 import documents_pb2
from kolm.ledger.v1 import ledger_pb2 as pb
from kolm.ledger.v1.ledger_pb2_grpc import LedgerServiceStub
from services.client import log_wire
from services.client.channel import Connection, Metadata, Stream, auditor_metadata
from services.client.errors import FieldViolation, InvalidArgument
from services.client.log import (
    Appended,
    ConsistencyProof,
    Content,
    HaltState,
    LogEntry,
    ProvenEntry,
    ReceiptDetails,
    ReceiptEntry,
    SignedCheckpoint,
    Verdict,
)

SERVICE = "kolm.ledger.v1.LedgerService"

_SECONDS = 30.0

_Response = TypeVar("_Response")


class LedgerClient:
    """One connection to a ledger server. Every method raises KolmError and gives up after `timeout` seconds."""

    def __init__(self, connection: Connection, timeout: float | None = _SECONDS) -> None:
        self.connection = connection
        self._timeout = timeout
        self._stub = LedgerServiceStub(connection.channel)

    @classmethod
    def connect(
        cls,
        target: str,
        *,
        wait: float = 0.0,
        timeout: float | None = _SECONDS,
        auditor_secret: str | None = None,
        auditor: bool = False,
    ) -> Self:
        """`target` is host:port or any gRPC name. `wait` > 0 waits that long for the server, else connects lazily.

        `auditor` (or a secret) makes the calls an auditor's: only those may read content.
        """
        metadata: Metadata = auditor_metadata(auditor_secret) if auditor or auditor_secret is not None else ()
        client = cls(Connection(target, metadata), timeout)
        if wait > 0:
            client.connection.wait_ready(wait)
        return client

    def append(self, envelope: bytes, content: Content | None = None) -> Appended:
        """Append a signed document; returns once it is durable. The same envelope again gets the same index."""
        message = None if content is None else log_wire.content_message(content)
        return log_wire.appended(
            self._call(self._stub.AppendEntry, pb.AppendEntryRequest(envelope=envelope, content=message))
        )

    def entry(self, index: int) -> LogEntry:
        """One leaf. Raises NotFound past the end."""
        return log_wire.entry(self._call(self._stub.GetEntry, pb.GetEntryRequest(index=index)).entry)

    def receipt(self, receipt_id: str, *, include_content: bool = False) -> ReceiptDetails:
        """A receipt with the verdicts on it; with its content only for auditors."""
        request = pb.GetReceiptRequest(receipt_id=receipt_id, include_content=include_content)
        return log_wire.receipt_details(self._call(self._stub.GetReceipt, request))

    def receipts(
        self,
        *,
        tenant: str | None = None,
        method: str | None = None,
        base_cid: str | None = None,
        request_id: str | None = None,
        min_index: int | None = None,
        max_index: int | None = None,
        page_size: int = 0,
    ) -> Iterator[ReceiptEntry]:
        """Every matching receipt, oldest first; pages are fetched as the iteration gets there."""
        request = pb.ListReceiptsRequest(
            tenant=tenant,
            method=method,
            base_cid=base_cid,
            request_id=request_id,
            min_index=min_index,
            max_index=max_index,
            page_size=page_size,
        )
        return map(log_wire.receipt, self._pages(self._stub.ListReceipts, request, lambda page: page.receipts))

    def verdicts(
        self, *, receipt_id: str | None = None, outcome: str | None = None, page_size: int = 0
    ) -> Iterator[Verdict]:
        """Every matching verdict, oldest first. `outcome` is EXACT, DEVIATION or UNREPLAYABLE."""
        try:
            number = log_wire.outcome_number(outcome)
        except ValueError:
            problem = f"expected EXACT, DEVIATION or UNREPLAYABLE, got {outcome!r}"
            raise InvalidArgument(problem, violations=(FieldViolation("outcome", problem),)) from None
        request = pb.ListVerdictsRequest(receipt_id=receipt_id, outcome=number, page_size=page_size)
        return map(log_wire.verdict, self._pages(self._stub.ListVerdicts, request, lambda page: page.verdicts))

    def watch(self, start_index: int = 0, *, follow: bool = False, kinds: Iterable[str] = ()) -> Stream[LogEntry]:
        """Entries in order, none left out; with `follow` also those to come, until the stream is closed.

        `kinds` narrows to some kinds of document, as `LogEntry.kind` names them; not to receipts or verdicts.
        """
        numbers = [documents_pb2.EntryKind.Value(f"ENTRY_KIND_{kind.upper()}") for kind in kinds]
        request = pb.WatchEntriesRequest(start_index=start_index, follow=follow, kinds=numbers)
        call = self._stub.WatchEntries(request, metadata=self.connection.metadata)
        return Stream(call, lambda message: log_wire.entry(message.entry))

    def checkpoint(self) -> SignedCheckpoint:
        """The newest signed tree head."""
        message = self._call(self._stub.GetCheckpoint, pb.GetCheckpointRequest())
        return SignedCheckpoint(message.checkpoint, message.tree_size, message.root_hash)

    def inclusion_proof(self, index: int, tree_size: int = 0) -> ProvenEntry:
        """That entry `index` is in the tree of `tree_size` entries; 0 is the newest tree."""
        request = pb.GetInclusionProofRequest(index=index, tree_size=tree_size)
        return log_wire.proven_entry(self._call(self._stub.GetInclusionProof, request))

    def consistency_proof(self, first_tree_size: int, second_tree_size: int = 0) -> ConsistencyProof:
        """That the second tree only appended to the first; 0 as second is the newest tree."""
        request = pb.GetConsistencyProofRequest(first_tree_size=first_tree_size, second_tree_size=second_tree_size)
        return log_wire.consistency_proof(self._call(self._stub.GetConsistencyProof, request))

    def halt_state(self) -> HaltState:
        """What is halted now."""
        return log_wire.halt_state(self._call(self._stub.GetHaltState, pb.GetHaltStateRequest()))

    def serving(self, timeout: float = 5.0) -> bool:
        """Whether the server is there and says that it serves."""
        return self.connection.serving(SERVICE, timeout)

    def close(self) -> None:
        """Cancel running calls and disconnect."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: Callable[..., _Response], request: Any) -> _Response:
        return self.connection.call(method, request, self._timeout)

    def _pages(self, method: Callable[..., Any], request: Any, items: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        while True:
            page = self._call(method, request)
            yield from items(page)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token
