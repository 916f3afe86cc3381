"""Reads of the log for one call, within the caller's rights: an entry, a proof, an answer or a bundle. Blocking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from kolm.ledger.v1 import documents_pb2, ledger_pb2
from ledger.bundle.export import Export
from ledger.bundle.folder import archive
from ledger.documents.erasure import Erasure
from ledger.documents.promise import Promise, PromiseAnswer, promise_digest, read_promise, sign_answer
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.encoding.text_forms import digest_text, timestamp
from ledger.errors import ChainError, FormatError, NotFound, ProofError
from ledger.keys.ed25519 import ROLES
from ledger.keys.signer import Signer
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.reader import LedgerReader, StoredReceipt
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.tree_head import TreeHead
from ledger.statements.scitt import Place, cose_receipt
from ledger.tree.entry import Entry
from ledger.tree.merkle import HashReader, tree_root
from services.client.ledger.log_wire import content_message
from services.ledger import messages
from services.ledger.checkpoints import Checkpoints, CosignedCheckpoint
from services.ledger.visibility import check_content, check_own, check_receipt, no_content, sees_entry, whole_log
from services.runtime.access import caller
from services.runtime.credentials import Principal
from services.runtime.errors import FailedPrecondition, InvalidArgument

_BATCH = 256
"""Entries that a watch reads in one query."""
_MOST_RECEIPTS = 1000
_PIECE_BYTES = 2**20


def _kept(reader: LedgerReader, head: TreeHead, promise: Promise) -> tuple[int | None, ...]:
    """The index of the newest promised receipt of each choice; receipts that share the prompt's commitment are few."""
    found: dict[int, int] = {}
    narrow, after = ReceiptFilter(tenant=promise.tenant, commitment=promise.prompt.commitment), -1
    while rows := reader.receipts(narrow, after=after):
        for row in rows:
            receipt = read_document(Entry.from_bytes(row.entry).envelope)
            if row.index < head.size and isinstance(receipt, Receipt) and promise.covers(receipt):
                found[receipt.sampling.choice] = row.index
        after = rows[-1].index
    return tuple(found.get(choice) for choice in range(promise.choices))


class LogReads:
    """Answers as messages, for the caller in the current context. Blocking; thread-safe. Every method raises
    LedgerError; NotFound also for entries about another tenant.
    """

    def __init__(self, reader: LedgerReader, hashes: HashReader, log_key: Signer) -> None:
        self._reader = reader
        self._hashes = hashes
        self._log_key = log_key

    def entry(self, index: int) -> ledger_pb2.GetEntryResponse:
        data, inclusion = self._reader.entry(index), self._reader.inclusion(index)
        if not sees_entry(caller(), index, data, self._find_receipt):
            raise NotFound("the entry is about another tenant")
        entry = messages.entry_message(index, data)
        proof = messages.inclusion_message(index, inclusion)
        return ledger_pb2.GetEntryResponse(entry=entry, checkpoint=inclusion.head.note, inclusion_proof=proof)

    def receipt(self, receipt_id: str, *, content: bool) -> ledger_pb2.GetReceiptResponse:
        """A receipt with its verdicts and, on request, its content. Raises PermissionDenied too."""
        stored = self._seen(receipt_id)
        inclusion = self._reader.inclusion(stored.index)
        found = None
        if content:
            check_content(caller(), stored.index, stored.entry)
            found = self._reader.content(stored.index)
        outcome = stored.verdicts[-1].outcome if stored.verdicts else None
        return ledger_pb2.GetReceiptResponse(
            receipt=messages.receipt_message(stored.index, stored.entry, outcome),
            content=None if found is None else content_message(found),
            verdicts=map(messages.verdict_message, stored.verdicts),
            content_state=messages.content_state(stored),
            erasure_index=stored.erased_by,
            checkpoint=inclusion.head.note,
            inclusion_proof=messages.inclusion_message(stored.index, inclusion),
        )

    def entries_from(self, position: int, kinds: tuple[str, ...]) -> tuple[list[documents_pb2.Entry], int]:
        """Some entries, up to the first damaged one, and the next position; raises ChainError if `position` is
        damaged.
        """
        size = self._reader.head().size
        if position >= size:
            return [], position
        if kinds:
            found, end = [each for each in self._reader.entries_of(kinds, position) if each[0] < size], size
        else:
            found = list(enumerate(self._reader.entries(position, _BATCH), position))
            end = position + len(found)
        entries: list[documents_pb2.Entry] = []
        for index, data in found:
            try:
                if sees_entry(caller(), index, data, self._find_receipt):
                    entries.append(messages.entry_message(index, data))
            except ChainError:
                if index == position:
                    raise
                return entries, index
        return entries, end

    def inclusion(self, index: int, size: int, checkpoint: bytes) -> ledger_pb2.GetInclusionProofResponse:
        hashes = self._reader.inclusion_proof(index, size)
        return ledger_pb2.GetInclusionProofResponse(
            inclusion_proof=documents_pb2.InclusionProof(index=index, tree_size=size, hashes=hashes),
            leaf_hash=self._hashes.subtree(0, index),
            root_hash=tree_root(size, self._hashes),
            checkpoint=checkpoint,
        )

    def consistency(self, first: int, second: int, checkpoint: bytes) -> ledger_pb2.GetConsistencyProofResponse:
        hashes = self._reader.consistency_proof(first, second)
        return ledger_pb2.GetConsistencyProofResponse(
            consistency_proof=documents_pb2.ConsistencyProof(
                first_tree_size=first, second_tree_size=second, hashes=hashes
            ),
            first_root_hash=tree_root(first, self._hashes),
            second_root_hash=tree_root(second, self._hashes),
            checkpoint=checkpoint,
        )

    def cose_receipt(self, receipt_id: str) -> ledger_pb2.GetCoseReceiptResponse:
        stored = self._seen(receipt_id)
        inclusion = self._reader.inclusion(stored.index)
        place = Place(stored.entry, stored.index, inclusion.hashes, inclusion.head.checkpoint)
        try:
            signed = cose_receipt(place, receipt_id, self._log_key)
        except ProofError as error:
            raise ChainError(stored.index, f"the tiles differ from the signed tree: {error}") from error
        proof = messages.inclusion_message(stored.index, inclusion)
        return ledger_pb2.GetCoseReceiptResponse(
            cose_receipt=signed, entry=stored.entry, checkpoint=inclusion.head.note, inclusion_proof=proof
        )

    def erasure(self, receipt_id: str) -> Erasure:
        """The unsigned erasure for a tenant's request. Raises NotFound, PermissionDenied, FailedPrecondition."""
        stored = self._seen(receipt_id)
        tenant = check_own(caller(), stored.index, stored.entry)
        if not stored.has_content:
            by = "was given" if stored.erased_by is None else f"is left: entry {stored.erased_by} erased it"
            raise FailedPrecondition(f"no content of the receipt {receipt_id} {by}", reason="NO_CONTENT")
        return Erasure.asked_for(receipt_id, stored.index, tenant, timestamp(datetime.now(UTC)))

    def promise_answer(self, envelope: bytes) -> ledger_pb2.AnswerPromiseResponse:
        """The promised receipts in the newest tree. Raises InvalidArgument, and PermissionDenied for another tenant's
        promise, too.
        """
        try:
            promise = read_promise(envelope)
        except FormatError as error:
            raise InvalidArgument("promise", str(error)) from None
        if not caller().sees(promise.tenant):
            whole_log(caller(), "the promise of another tenant")
        now = timestamp(datetime.now(UTC))  # before the tree: a receipt that is appended meanwhile is not missing
        head = self._reader.head()
        entries = _kept(self._reader, head, promise)
        answer = PromiseAnswer(promise_digest(envelope), head.size, digest_text(head.checkpoint.root), entries, now)
        return ledger_pb2.AnswerPromiseResponse(
            answer=sign_answer(answer, self._log_key).to_bytes(), checkpoint=head.note
        )

    def _seen(self, receipt_id: str) -> StoredReceipt:
        stored = self._reader.receipt(receipt_id)
        check_receipt(caller(), stored.index, stored.entry)
        return stored

    def _find_receipt(self, receipt_id: str) -> bytes:
        return self._reader.receipt(receipt_id).entry


def bundle_pieces(
    reader: LedgerReader,
    trusted: TrustedKeys,
    request: ledger_pb2.ExportBundleRequest,
    checkpoints: Checkpoints,
    caller: Principal,
) -> Iterator[bytes]:
    """The pieces of a .tar.gz under the newest checkpoint or, with witnesses, the newest checkpoint with a quorum that
    covers the request. Blocking, as is its iteration. Callers who do not see the whole log get bundles of their own
    receipts.

    Raises InvalidArgument, PermissionDenied, NotFound (of the ledger), ProofError.
    """
    if len(request.receipt_ids) > _MOST_RECEIPTS:
        raise InvalidArgument("receipt_ids", f"expected at most {_MOST_RECEIPTS}, got {len(request.receipt_ids)}")
    if not request.receipt_ids or request.HasField("start_index") or request.HasField("end_index"):
        whole_log(caller, "a range")
    indexes = reader.indexes_of(request.receipt_ids)
    _check(reader, indexes, request, caller)
    head = _head(checkpoints, max([*indexes, request.end_index - 1]))
    start, end = _range(request, head.checkpoint.size)
    wanted = Export(
        checkpoint=head.note,
        start=start,
        end=end,
        exported_at=timestamp(datetime.now(UTC)),
        indexes=indexes,
        earlier=checkpoints.earlier(head.checkpoint.size),
        with_content=request.include_content,
        tenant=None if caller.sees_all else caller.tenant,
        policy=None if checkpoints.policy is None else checkpoints.policy.to_bytes(),
        keys={role: trusted.keys(role) for role in ROLES},
    )
    return _cut(archive(reader.export(wanted)))


def _check(
    reader: LedgerReader, indexes: Sequence[int], request: ledger_pb2.ExportBundleRequest, caller: Principal
) -> None:
    if request.include_content and caller.sees_all and "audit" not in caller.roles:
        raise no_content()
    for index in () if caller.sees_all else indexes:
        entry = reader.entry(index)
        check_receipt(caller, index, entry)
        if request.include_content:
            check_content(caller, index, entry)


def _head(checkpoints: Checkpoints, last: int) -> CosignedCheckpoint:
    """The checkpoint for the proof of entry `last`."""
    try:
        witnessed = checkpoints.witnessed()
    except NotFound:
        return checkpoints.newest()
    return witnessed if last < witnessed.checkpoint.size else checkpoints.newest()


def _range(request: ledger_pb2.ExportBundleRequest, size: int) -> tuple[int, int]:
    """[start, end), the complete range of the bundle; empty if only receipts are requested."""
    if not request.HasField("start_index") and not request.HasField("end_index"):
        return (0, 0) if request.receipt_ids else (0, size)
    start = request.start_index
    end = request.end_index if request.HasField("end_index") else size
    if start > end:
        raise InvalidArgument("start_index", f"expected at most the end of the range, {end}, got {start}")
    return start, end


def _cut(pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        for at in range(0, len(piece), _PIECE_BYTES):
            yield piece[at : at + _PIECE_BYTES]
