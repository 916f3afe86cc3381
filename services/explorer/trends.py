"""The page of plots: acceptance and speedup by method and head, and the log's growth, folded from proven receipts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ledger.documents.receipt import Receipt
from ledger.encoding.text_forms import parse_timestamp
from ledger.errors import LedgerError
from ledger.log.receipt_filter import ReceiptFilter
from services.client.errors import KolmError
from services.client.ledger.log import ReceiptEntry
from services.explorer.pages import Pages

_MOST_BINS = 4096
"""Most bins of one series; with more, all become twice as wide."""

_MOST_POINTS = 120
"""Most points of one series in a plot."""

Series = tuple[str, str | None]
"""Method and head."""


@dataclass(slots=True)
class Sums:
    """The sums over the receipts of one bin."""

    receipts: int = 0
    proposed: int = 0
    accepted: int = 0
    passes: int = 0
    tokens: int = 0
    speedups: int = 0
    speedup: float = 0.0

    def add(self, other: Sums) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def acceptance(self) -> float | None:
        """Accepted of proposed tokens."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def tokens_per_pass(self) -> float | None:
        return self.tokens / self.passes if self.passes else None

    @property
    def mean_speedup(self) -> float | None:
        return self.speedup / self.speedups if self.speedups else None


@dataclass(slots=True)
class Bins:
    """Sums by time: bin b holds the seconds [b·width, (b+1)·width)."""

    width: int = 1
    sums: dict[int, Sums] = field(default_factory=dict)

    def add(self, second: int, sums: Sums) -> None:
        self.sums.setdefault(second // self.width, Sums()).add(sums)
        if len(self.sums) > _MOST_BINS:
            self.sums, self.width = self.widened(2 * self.width), 2 * self.width

    def widened(self, width: int) -> dict[int, Sums]:
        """The sums in bins of `width`, a multiple of the own one."""
        wide: dict[int, Sums] = {}
        for place, sums in self.sums.items():
            wide.setdefault(place * self.width // width, Sums()).add(sums)
        return wide

    def total(self) -> Sums:
        total = Sums()
        for sums in list(self.sums.values()):
            total.add(sums)
        return total


class Trends:
    """Reads the log's receipts once, in a thread of its own, and goes on where it was at the next look."""

    def __init__(self, list_: Callable[[ReceiptFilter], Iterable[ReceiptEntry]]) -> None:
        self._list = list_
        self._lock = threading.Lock()
        self._reading: threading.Thread | None = None
        self._failure: Exception | None = None
        self._bins: dict[Series, Bins] = {}
        self._growth: dict[int, int] = {}
        self._next = 0

    def catch_up(self, patience: float) -> bool:
        """Read on for up to `patience` seconds, and longer in the background. Whether all has been read.

        Raises what the reading raised: KolmError, LedgerError.
        """
        with self._lock:
            if self._reading is None or not self._reading.is_alive():
                self._reading = threading.Thread(target=self._read, name="kolm-trends", daemon=True)
                self._reading.start()
            reading = self._reading
        reading.join(patience)
        with self._lock:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            return not reading.is_alive()

    @property
    def seen(self) -> int:
        """The entries up to the newest receipt that has been read."""
        return self._next

    def totals(self) -> list[tuple[Series, Sums]]:
        """Each series over all time, by method and head."""
        with self._lock:
            return [(key, self._bins[key].total()) for key in sorted(self._bins, key=_order)]

    def document(self) -> dict[str, object]:
        """The data of the plots; times are POSIX seconds."""
        with self._lock:
            width, empty = _width(self._bins.values()), Sums()
            wide = {key: self._bins[key].widened(width) for key in sorted(self._bins, key=_order)}
            places = sorted({place for sums in wide.values() for place in sums})
            series = [
                {
                    "method": method,
                    "head": head,
                    "acceptance": [sums.get(place, empty).acceptance for place in places],
                    "speedup": [sums.get(place, empty).mean_speedup for place in places],
                }
                for (method, head), sums in wide.items()
            ]
            times = sorted(self._growth)
            growth = {"times": times, "entries": [self._growth[each] for each in times]}
            return {"times": [place * width for place in places], "series": series, "growth": growth}

    def _read(self) -> None:
        try:
            for receipt in self._list(ReceiptFilter(min_index=self._next)):
                self._take(receipt)
        except (KolmError, LedgerError) as error:
            with self._lock:
                self._failure = error

    def _take(self, receipt: ReceiptEntry) -> None:
        document, block = receipt.document, receipt.document.spec_decode
        second = int(parse_timestamp(document.issued_at).timestamp())
        with self._lock:
            bins = self._bins.setdefault((block.method, block.head_cid), Bins())
            bins.add(second, _sums(document))
            self._grow(second, receipt.index + 1)
            self._next = receipt.index + 1

    def _grow(self, second: int, entries: int) -> None:
        """Every time that is kept is later than the one before: a clock that went back adds nothing."""
        newest = next(reversed(self._growth), None)
        if newest is None or second >= newest:
            self._growth[second] = entries
        if len(self._growth) > _MOST_BINS:
            self._growth = dict(list(self._growth.items())[1::2])


def _sums(receipt: Receipt) -> Sums:
    block, speedup = receipt.spec_decode, receipt.measured_speedup
    passes = 0 if block.mean_acceptance_length is None else block.target_passes or 0
    return Sums(
        receipts=1,
        proposed=block.tokens_proposed or 0,
        accepted=block.tokens_accepted or 0,
        passes=passes,
        tokens=round(passes * (block.mean_acceptance_length or 0.0)),
        speedups=int(speedup is not None),
        speedup=speedup or 0.0,
    )


def _width(all_bins: Iterable[Bins]) -> int:
    """The least width of all bins, times a power of two, that makes few enough points."""
    bins = list(all_bins)
    width = max((each.width for each in bins), default=1)
    while len({place * each.width // width for each in bins for place in each.sums}) > _MOST_POINTS:
        width *= 2
    return width


def _order(series: Series) -> tuple[str, str]:
    return series[0], series[1] or ""


_PATIENCE_SECONDS = 3.0


class TrendsPage:
    """GET /trends and /trends.json; both say how far the log has been read."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._trends = Trends(pages.source.proving.receipts)

    def answer(self, _: Request) -> Response:
        size = self._pages.source.proving.head().size
        finished = self._trends.catch_up(_PATIENCE_SECONDS)
        return self._pages.of_log(
            "trends.html",
            here="trends",
            totals=self._trends.totals(),
            seen=size if finished else self._trends.seen,
            size=size,
        )

    def data(self, _: Request) -> Response:
        self._trends.catch_up(_PATIENCE_SECONDS)
        return JSONResponse(self._trends.document())
