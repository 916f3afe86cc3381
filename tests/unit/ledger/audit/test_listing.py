"""A page of receipts against a checkpoint: honest ones pass, and bytes from anywhere raise one family of errors."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.audit.listing import CompleteRange, ListedReceipt, Page, verify_page
from ledger.errors import LedgerError, ProofError
from ledger.keys.envelope import Envelope
from ledger.log.receipt_filter import ReceiptFilter
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import leaf_hash
from ledger.tree.multiproof import multi_proof, range_proof
from tests.examples import examples
from tests.mutations import replace
from tests.unit.ledger.builders import ORIGIN, TRUSTED, key_entry, receipt, receipt_id, signed, signed_receipt
from tests.unit.ledger.tree.naive_tree import NaiveHashes, NaiveTree

ENVELOPES = [
    signed_receipt(0), signed(key_entry("auditor")), signed(receipt(2, tenant="other")), signed_receipt(3),
    signed_receipt(4),
]  # fmt: skip
ENTRIES: list[bytes] = []
for index, envelope in enumerate(ENVELOPES):
    ENTRIES.append(Entry(index, Envelope.from_bytes(envelope)).to_bytes())
TREE = NaiveHashes(NaiveTree([leaf_hash(entry) for entry in ENTRIES]))
HEAD = Checkpoint(ORIGIN, len(ENTRIES), TREE.naive.root(0, len(ENTRIES)))
ACME = ReceiptFilter(tenant="acme")


def row(index: int) -> ListedReceipt:
    return ListedReceipt(index, ENVELOPES[index])


LISTED = Page(tuple(map(row, (0, 3, 4))), HEAD.size, multi_proof([0, 3, 4], HEAD.size, TREE))
COMPLETE = Page(
    tuple(map(row, (0, 3))),
    HEAD.size,
    range_proof(0, 4, HEAD.size, TREE),
    CompleteRange(0, 4, (ENTRIES[1], ENTRIES[2])),
)


def test_honest_pages_pass() -> None:
    assert [each.receipt_id for each in verify_page(LISTED, HEAD, TRUSTED, ACME)] == list(map(receipt_id, (0, 3, 4)))
    assert len(verify_page(COMPLETE, HEAD, TRUSTED, ACME)) == 2
    empty = Page((), HEAD.size, (), CompleteRange(5, 5, ()))
    assert verify_page(empty, HEAD, TRUSTED, ACME) == ()


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (replace(LISTED, rows=LISTED.rows[::-1]), "order"),
        (replace(LISTED, rows=(LISTED.rows[0], *LISTED.rows)), "order"),
        (replace(LISTED, rows=(row(1),)), "is not one"),
        (replace(LISTED, rows=(row(2),)), "does not match the filter"),
        (replace(LISTED, tree_size=4), "a tree of 4 entries"),
        (replace(COMPLETE, complete=CompleteRange(0, 9, (ENTRIES[1], ENTRIES[2]))), "other entries"),
        (replace(COMPLETE, complete=CompleteRange(4, 0, (ENTRIES[1], ENTRIES[2]))), "other entries"),
        (replace(COMPLETE, complete=CompleteRange(0, 4, (ENTRIES[2], ENTRIES[1]))), "in the place of"),
        (replace(COMPLETE, complete=CompleteRange(0, 5, (*ENTRIES[1:3], ENTRIES[4]))), "leaves it out"),
        (replace(COMPLETE, complete=CompleteRange(1, 4, (ENTRIES[1],))), "outside the page's range"),
    ],
)
def test_pages_that_prove_something_else_are_refused(page: Page, why: str) -> None:
    with pytest.raises(ProofError, match=why):
        verify_page(page, HEAD, TRUSTED, ACME)


_BYTES = st.binary(max_size=40) | st.sampled_from([*ENVELOPES, *ENTRIES])
_INDEX = st.integers(-1, 2**70)
_ROWS = st.builds(ListedReceipt, _INDEX | st.integers(0, 4), _BYTES)
_RANGES = st.none() | st.builds(CompleteRange, st.integers(-2, 6), st.integers(-2, 6), st.lists(_BYTES).map(tuple))


@settings(max_examples=examples(300))
@given(st.lists(_ROWS | st.sampled_from(LISTED.rows), max_size=4), st.lists(_BYTES, max_size=4), _RANGES)
def test_whatever_comes_only_the_ledger_s_own_errors_leave(
    rows: list[ListedReceipt], proof: list[bytes], complete: CompleteRange | None
) -> None:
    page = Page(tuple(rows), HEAD.size, tuple(proof), complete)
    with suppress(LedgerError):
        verify_page(page, HEAD, TRUSTED, ACME)
