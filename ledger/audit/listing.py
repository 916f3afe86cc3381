"""A page of listed receipts, and its proof: every row is in the log and, if requested, none was left out. Pure.

A row is proven by its entry bytes, made from index and envelope. A complete page also has the entries of its range that
do not match. The verifier reads their bytes, so a receipt that matches cannot hide among them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import open_document, read_document
from ledger.errors import ProofError
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import leaf_hash
from ledger.tree.multiproof import verify_multi_proof, verify_range_proof


@dataclass(frozen=True, slots=True)
class ListedReceipt:
    """One row of a page."""

    index: int
    envelope: bytes


@dataclass(frozen=True, slots=True)
class CompleteRange:
    """The range [start, end) of a complete page; `others` has the entry bytes of every index without a row, in
    order.
    """

    start: int
    end: int
    others: tuple[bytes, ...]

    @property
    def width(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Page:
    """Rows by index, and the multi-proof of their leaves and of the leaves of `complete`, in a tree of `tree_size`."""

    rows: tuple[ListedReceipt, ...]
    tree_size: int
    proof: tuple[bytes, ...]
    complete: CompleteRange | None = None


class Criteria(Protocol):
    """The condition that all rows meet, such as `receipt_filter.ReceiptFilter`."""

    def admits(self, index: int, receipt: Receipt) -> bool:
        """Whether the receipt at `index` belongs in the list, by its own fields."""
        ...


def verify_page(page: Page, checkpoint: Checkpoint, trusted: TrustedKeys, criteria: Criteria) -> tuple[Receipt, ...]:
    """The receipts of the rows, if all of the page is proven under `checkpoint`, which the caller has checked. Only the
    whole log shows which keys were valid at an index: see `key_history`.

    1. the rows are in order, and each is a receipt signed by a trusted key that `criteria` admits
    2. the proof leads from the leaves to the root of `checkpoint`
    3. a complete range is whole, and nothing in `others` is a receipt that `criteria` admits

    Raises FormatError, SignatureError, ProofError.
    """
    if page.tree_size != checkpoint.size:
        raise ProofError(
            f"the page is proven in a tree of {page.tree_size} entries, its checkpoint has {checkpoint.size}"
        )
    _check_order([row.index for row in page.rows])
    receipts = tuple(_receipt(row, trusted, criteria) for row in page.rows)
    entries = (Entry(row.index, Envelope.from_bytes(row.envelope)) for row in page.rows)
    leaves = {entry.index: leaf_hash(entry.to_bytes()) for entry in entries}
    if page.complete is None:
        verify_multi_proof(leaves, checkpoint.size, checkpoint.root, page.proof)
    else:
        _verify_complete(page.complete, leaves, page.proof, checkpoint, criteria)
    return receipts


def _check_order(indexes: Sequence[int]) -> None:
    if any(later <= earlier for earlier, later in pairwise(indexes)):
        raise ProofError("the rows are not in the order of the log")


def _receipt(row: ListedReceipt, trusted: TrustedKeys, criteria: Criteria) -> Receipt:
    document = open_document(Envelope.from_bytes(row.envelope), trusted)
    if not isinstance(document, Receipt):
        raise ProofError(f"entry {row.index} is listed as a receipt and is not one")
    if not criteria.admits(row.index, document):
        raise ProofError(f"entry {row.index} does not match the filter")
    return document


def _verify_complete(
    claimed: CompleteRange, leaves: dict[int, bytes], proof: Sequence[bytes], checkpoint: Checkpoint, criteria: Criteria
) -> None:
    _check_range(claimed, leaves, checkpoint)
    missing = (index for index in range(claimed.start, claimed.end) if index not in leaves)
    for index, data in zip(missing, claimed.others, strict=True):
        _check_other(index, data, criteria)
        leaves[index] = leaf_hash(data)
    ordered = [leaves[index] for index in range(claimed.start, claimed.end)]
    verify_range_proof(ordered, claimed.start, claimed.end, checkpoint.size, checkpoint.root, proof)


def _check_range(claimed: CompleteRange, rows: Collection[int], checkpoint: Checkpoint) -> None:
    """Raises ProofError unless each index of the range has a row or another entry, and no row is outside of it."""
    if not 0 <= claimed.start <= claimed.end <= checkpoint.size or len(rows) + len(claimed.others) != claimed.width:
        raise ProofError(f"{len(rows)} rows and {len(claimed.others)} other entries, expected {claimed.width} in all")
    if any(not claimed.start <= index < claimed.end for index in rows):
        raise ProofError(f"a row is outside the page's range, entries {claimed.start} to {claimed.end - 1}")


def _check_other(index: int, data: bytes, criteria: Criteria) -> None:
    entry = Entry.from_bytes(data)
    if entry.index != index:
        raise ProofError(f"entry {entry.index} is shown in the place of entry {index}")
    document = read_document(entry.envelope)
    if isinstance(document, Receipt) and criteria.admits(index, document):
        raise ProofError(f"entry {index} is a receipt that was asked for, and the list leaves it out")
