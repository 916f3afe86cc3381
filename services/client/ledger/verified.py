"""A ledger client that checks the proofs of its answers.

    trusted = TrustedKeys.load(Path("trusted"))
    with LedgerClient.connect("127.0.0.1:50052") as client:
        ledger = VerifiedLedger(client, trusted, RememberedCheckpoint(Path("seen.checkpoint")))
        for receipt in ledger.receipts(ReceiptFilter(tenant="acme"), complete=True): ...

Every method raises KolmError. A failed check raises an error of the ledger: FormatError, SignatureError, ProofError.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ledger.audit.listing import CompleteRange, ListedReceipt, Page, verify_page
from ledger.audit.log_verification import verify_receipt
from ledger.documents import audit
from ledger.documents.content import Content
from ledger.documents.erasure import Erasure
from ledger.documents.promise import PromiseAnswer, open_answer
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import open_document
from ledger.durable_file import write_durably
from ledger.encoding.text_forms import digest_text
from ledger.errors import ProofError
from ledger.keys.envelope import Envelope
from ledger.keys.note import Note
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.receipt_filter import ReceiptFilter
from ledger.tree.checkpoint import Checkpoint, open_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import leaf_hash, verify_consistency, verify_inclusion
from ledger.witness.freshness import Freshness, quorum_time
from ledger.witness.tlog_policy import Policy
from services.client.errors import NotFound
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.log import (
    Appended,
    InclusionProof,
    LogEntry,
    ReceiptDetails,
    ReceiptEntry,
    ReceiptPage,
    VerdictEntry,
)


class RememberedCheckpoint:
    """The newest checkpoint that a client has seen, which later ones have to extend; with a path, kept in a file for
    the next run. Not thread-safe.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Raises OSError if there is a file that cannot be read."""
        self._path = path
        self._note = path.read_bytes() if path is not None and path.exists() else None

    @property
    def note(self) -> bytes | None:
        """The signed note; None before the first."""
        return self._note

    def keep(self, note: bytes) -> None:
        """Returns once it is on disk; a crash leaves the old one or the new one. Raises OSError."""
        if self._path is not None:
            write_durably(self._path, note)
        self._note = note


@dataclass(frozen=True, slots=True)
class SignedAnswer:
    """The log's answer to a promise, and its signed bytes."""

    answer: PromiseAnswer
    envelope: bytes


class VerifiedLedger:
    """Checks a LedgerClient's answers: signatures against keys that the caller trusts, proofs against checkpoints,
    and each checkpoint against the newest earlier one, so that the log can only have grown. Thread-safe.
    """

    def __init__(
        self,
        client: LedgerClient,
        trusted: TrustedKeys,
        remembered: RememberedCheckpoint | None = None,
        *,
        origin: str | None = None,
    ) -> None:
        """`origin` is the log's name in its checkpoints; None takes the name in the remembered checkpoint, or in the
        first.
        """
        self._client = client
        self._trusted = trusted
        self._remembered = remembered or RememberedCheckpoint()
        self._lock = threading.Lock()
        note = self._remembered.note
        self._newest = None if note is None else open_checkpoint(note, trusted.keys("log"), origin)
        self._origin = origin or (None if self._newest is None else self._newest.origin)

    def head(self) -> Checkpoint:
        """The newest checkpoint, checked against everything seen so far."""
        return self._accept(self._client.checkpoint().note)

    def freshness(self, policy: Policy, now: datetime | None = None) -> Freshness:
        """The age of the newest checkpoint with cosignatures of a quorum of `policy`'s witnesses, at `now` (None: this
        machine's clock). The checkpoint is checked as `head` is; `Freshness.check` compares the age with a limit, which
        a log without such a checkpoint fails.
        """
        cosigned = self._cosigned(policy, witnessed=False)
        if cosigned is None:  # the newest is too young; the server may have an older one
            with suppress(NotFound):
                cosigned = self._cosigned(policy, witnessed=True)
        return Freshness(now or datetime.now(UTC), cosigned)

    def _cosigned(self, policy: Policy, *, witnessed: bool) -> datetime | None:
        note = self._client.checkpoint(witnessed=witnessed).note
        self._accept(note)
        return quorum_time(policy, policy.cosigned(Note.from_bytes(note)))

    def append(self, envelope: bytes, content: Content | None = None) -> Appended:
        """`LedgerClient.append`; returns once it is proven that the log holds this very envelope."""
        return self._proven(envelope, self._client.append(envelope, content))

    def erase(self, envelope: bytes) -> Appended:
        """`LedgerClient.erase`; returns once it is proven that the log holds the erasure."""
        return self._proven(envelope, self._client.erase(envelope))

    def erase_own(self, receipt_id: str) -> Appended:
        """`LedgerClient.erase_own`; returns once it is proven that the log holds its erasure of this receipt."""
        answer = self._client.erase_own(receipt_id)
        erasure = open_document(self.entry(answer.index).envelope, self._trusted)
        if not isinstance(erasure, Erasure) or erasure.receipt_id != receipt_id:
            raise ProofError(f"entry {answer.index} is not an erasure of the receipt {receipt_id}")
        return answer

    def entry(self, index: int) -> LogEntry:
        """`LedgerClient.entry`; returns once it is proven that the log holds these bytes there. The keys that were
        valid at that index need the log up to it: `ledger.audit.log_verification`.
        """
        answer = self._client.entry(index)
        if answer.index != index:
            raise ProofError(f"the server shows entry {answer.index} where entry {index} was asked for")
        self._check_included(answer.leaf, answer.checkpoint, answer.inclusion_proof)
        return answer

    def receipt(self, receipt_id: str, *, include_content: bool = False) -> ReceiptDetails:
        """`LedgerClient.receipt`; returns once it is proven that the log holds this receipt, signed by a trusted key.

        The content matches its commitments, and each verdict is signed by a trusted auditor. It is not proven that no
        verdict was left out, nor why content is missing.
        """
        details = self._client.receipt(receipt_id, include_content=include_content)
        document = verify_receipt(details.receipt.envelope, self._trusted)
        if document.receipt_id != receipt_id:
            raise ProofError(f"the server shows receipt {document.receipt_id} where {receipt_id} was asked for")
        _check_details(details, document, self._trusted)
        self._check_included(details.receipt.entry, details.checkpoint, details.inclusion_proof)
        return details

    def receipts(self, narrow: ReceiptFilter, *, complete: bool = False, page_size: int = 0) -> Iterator[ReceiptEntry]:
        """Matching receipts, oldest first, each proven to be in the log.

        `complete` also proves that none was left out of [min_index, max_index], by default the whole log as of the last
        page. A filter by `outcome` cannot be complete, because receipts do not have it.
        """
        expected = narrow.min_index or 0
        head = None
        for page in self._client.receipt_pages(narrow, page_size=page_size, complete=complete):
            head = self._accept(page.checkpoint)
            verify_page(_page(page, complete), head, self._trusted, narrow)
            expected = _next_index(page, expected, head) if complete else _after_rows(page, expected)
            yield from page.receipts
        if complete and head is not None:
            _check_end(expected, narrow, head)

    def promise_answer(self, promise: bytes) -> SignedAnswer:
        """The log's signed answer, which receipts of a promise (its envelope) its newest tree holds.

        Raises LedgerError for an answer of another signer, or about another tree or promise.
        """
        data, note = self._client.promise_answer(promise)
        answer, head = open_answer(data, promise, self._trusted), self._accept(note)
        if (answer.tree_size, answer.root_hash) != (head.size, digest_text(head.root)):
            raise ProofError("the answer is about another tree than the log's checkpoint")
        return SignedAnswer(answer, data)

    def _proven(self, envelope: bytes, answer: Appended) -> Appended:
        entry = Entry(answer.index, Envelope.from_bytes(envelope))
        self._check_included(entry, answer.checkpoint, answer.inclusion_proof)
        return answer

    def _check_included(self, entry: Entry, checkpoint: bytes, proof: InclusionProof | None) -> None:
        if proof is None:
            raise ProofError(f"the server shows entry {entry.index} without a proof that the log holds it")
        head = self._accept(checkpoint)
        verify_inclusion(leaf_hash(entry.to_bytes()), entry.index, head.size, proof.hashes, head.root)

    def _accept(self, note: bytes) -> Checkpoint:
        """The checkpoint of a note, if the log signed it and it is consistent with all that were accepted before."""
        head = open_checkpoint(note, self._trusted.keys("log"), self._origin)
        with self._lock:
            if self._newest is None:
                self._origin = head.origin
            elif head != self._newest:
                self._check_consistent(*sorted((self._newest, head), key=lambda each: each.size))
            if self._newest is None or head.size > self._newest.size:
                self._remembered.keep(note)
                self._newest = head
        return head

    def _check_consistent(self, old: Checkpoint, new: Checkpoint) -> None:
        if old.size == new.size:
            raise ProofError(f"the log has signed two different trees of {old.size} entries: it has forked")
        try:
            proof = self._client.consistency_proof(old.size, new.size)
        except NotFound:
            raise ProofError(f"the log cannot show that its {new.size} entries extend its {old.size}") from None
        verify_consistency(old.size, new.size, proof.hashes, old.root, new.root)


def _check_details(details: ReceiptDetails, document: Receipt, trusted: TrustedKeys) -> None:
    """Check a receipt's content and verdicts. Raises FormatError, SignatureError, ProofError.

    The content must match its commitments, each verdict must be on this receipt and signed by a trusted auditor, and
    the row's outcome must be that in the newest verdict.
    """
    if details.content is not None:
        details.content.check_against(document)
    for shown in details.verdicts:
        _check_verdict(shown, details.receipt, trusted)
    newest = details.verdicts[-1].document.outcome if details.verdicts else None
    if details.receipt.outcome != newest:
        raise ProofError(
            f"receipt {document.receipt_id} is shown as {details.receipt.outcome}, its newest verdict as {newest}"
        )


def _check_verdict(shown: VerdictEntry, row: ReceiptEntry, trusted: TrustedKeys) -> None:
    document = open_document(Envelope.from_bytes(shown.envelope), trusted)
    if not isinstance(document, audit.Verdict):
        raise ProofError(f"entry {shown.index} is shown as a verdict and is not one")
    if (document.receipt_id, document.receipt_index) != (row.receipt_id, row.index):
        raise ProofError(f"the verdict in entry {shown.index} is not on {row.receipt_id}, for which it is shown")


def _page(page: ReceiptPage, complete: bool) -> Page:
    if complete and (page.start is None or page.end is None):
        raise ProofError("the server does not show that nothing was left out")
    return Page(
        rows=tuple(ListedReceipt(row.index, row.envelope) for row in page.receipts),
        tree_size=page.tree_size,
        proof=page.hashes,
        complete=CompleteRange(page.start or 0, page.end or 0, page.others) if complete else None,
    )


def _after_rows(page: ReceiptPage, expected: int) -> int:
    if page.receipts and page.receipts[0].index < expected:
        raise ProofError(f"entry {page.receipts[0].index} is listed after entry {expected - 1}")
    return page.receipts[-1].index + 1 if page.receipts else expected


def _next_index(page: ReceiptPage, expected: int, head: Checkpoint) -> int:
    """The index after a complete page, which has to begin at the end of the page before it."""
    if page.start != min(expected, head.size):
        raise ProofError(f"a page begins at entry {page.start}, the page before it ended at entry {expected}")
    return page.end or 0


def _check_end(reached: int, narrow: ReceiptFilter, head: Checkpoint) -> None:
    end = head.size if narrow.max_index is None else min(narrow.max_index + 1, head.size)
    if reached < end:
        raise ProofError(f"the list ends at entry {reached}, expected the range up to entry {end}")
