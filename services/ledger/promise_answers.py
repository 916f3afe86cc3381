"""The log's answers to promises. Blocking: called on a worker thread."""

from __future__ import annotations

from datetime import UTC, datetime

from kolm.ledger.v1 import ledger_pb2
from ledger.documents.promise import Promise, PromiseAnswer, promise_digest, read_promise, sign_answer
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.encoding.text_forms import digest_text, timestamp
from ledger.errors import FormatError
from ledger.keys.signer import Signer
from ledger.log.reader import LedgerReader
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.tree_head import TreeHead
from ledger.tree.entry import Entry
from services.ledger.visibility import whole_log
from services.runtime.credentials import Principal
from services.runtime.errors import InvalidArgument


def answer_promise(
    reader: LedgerReader, key: Signer, envelope: bytes, caller: Principal
) -> ledger_pb2.AnswerPromiseResponse:
    """Which promised receipts the newest tree holds. Raises InvalidArgument, PermissionDenied for another tenant's."""
    try:
        promise = read_promise(envelope)
    except FormatError as error:
        raise InvalidArgument("promise", str(error)) from None
    if not caller.sees(promise.tenant):
        whole_log(caller, "the promise of another tenant")
    head = reader.head()
    entries = _kept(reader, head, promise)
    root = digest_text(head.checkpoint.root)
    said = PromiseAnswer(promise_digest(envelope), head.size, root, entries, timestamp(datetime.now(UTC)))
    return ledger_pb2.AnswerPromiseResponse(answer=sign_answer(said, key).to_bytes(), checkpoint=head.note)


def _kept(reader: LedgerReader, head: TreeHead, promise: Promise) -> tuple[int | None, ...]:
    """The newest receipt of each choice; receipts that share the prompt's commitment are few."""
    found: dict[int, int] = {}
    narrow, after = ReceiptFilter(tenant=promise.tenant, commitment=promise.prompt.commitment), -1
    while rows := reader.receipts(narrow, after=after):
        for row in rows:
            receipt = read_document(Entry.from_bytes(row.entry).envelope)
            if row.index < head.size and isinstance(receipt, Receipt) and promise.is_kept_by(receipt):
                found[receipt.sampling.choice] = row.index
        after = rows[-1].index
    return tuple(found.get(choice) for choice in range(promise.choices))
