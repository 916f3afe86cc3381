"""Trends: folded once, the same whatever the bins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ledger.errors import ProofError
from ledger.log.receipt_filter import ReceiptFilter
from services.client.ledger.log import ReceiptEntry
from services.explorer import trends
from services.explorer.trends import Bins, Sums, Trends
from tests.replacing import replace
from tests.unit.ledger.builders import START, receipt, signed


def entry(number: int, **changes: Any) -> ReceiptEntry:
    return ReceiptEntry(number, bytes(32), signed(receipt(number, **changes)), None)


class Log:
    def __init__(self) -> None:
        self.size = 3
        self.asked: list[int | None] = []

    def __call__(self, query: ReceiptFilter) -> Iterator[ReceiptEntry]:
        self.asked.append(query.min_index)
        return iter([entry(number) for number in range(query.min_index or 0, self.size)])


def test_each_receipt_is_read_once() -> None:
    log = Log()
    folded = Trends(log)
    assert folded.catch_up(10)
    log.size = 5
    assert folded.catch_up(10)
    ((series, sums),) = folded.totals()
    assert (series, sums.receipts, sums.acceptance, sums.mean_speedup, log.asked) == (
        ("lookahead", None),
        5,
        0.25,
        None,
        [0, 3],
    )
    document = folded.document()
    assert document["growth"] == {"times": [int(START.timestamp()) + n for n in range(5)], "entries": [1, 2, 3, 4, 5]}


def test_only_speedups_that_a_replay_measured_are_plotted() -> None:
    block = receipt().spec_decode  # two tokens in one pass
    claims = ((1.5, "replayed"), (1.5, "calibrated"), (2.5, "replayed"), (None, None))
    entries = [
        entry(number, spec_decode=replace(block, wall_clock_speedup=speedup, speedup_basis=basis))
        for number, (speedup, basis) in enumerate(claims)
    ]
    folded = Trends(lambda _: iter(entries))
    assert folded.catch_up(10)
    ((_, sums),) = folded.totals()
    assert (sums.receipts, sums.speedups, sums.mean_speedup) == (4, 1, 1.5)


def test_a_log_that_does_not_hold_is_not_plotted() -> None:
    def lying(_: ReceiptFilter) -> Iterator[ReceiptEntry]:
        yield entry(0)
        raise ProofError("the page is not proven")

    with pytest.raises(ProofError):
        Trends(lying).catch_up(10)


def test_wider_bins_hold_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trends, "_MOST_BINS", 8)
    bins = Bins()
    for second in range(100):
        bins.add(second, Sums(receipts=1, proposed=4, accepted=second % 5))
    assert len(bins.sums) <= 8
    assert (bins.total().receipts, bins.total().proposed, bins.total().accepted) == (100, 400, 200)
