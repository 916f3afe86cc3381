"""The state of a promise, by the receipts of a log: kept, open or broken. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from ledger.documents.promise import Promise, open_promise
from ledger.documents.receipt import Receipt
from ledger.encoding.text_forms import parse_timestamp
from ledger.errors import SignatureError
from ledger.keys.trusted_keys import TrustedKeys


@dataclass(slots=True)
class Fulfilment:
    """The receipts of a promise: `entries` has their indexes by choice, `endings` their finish reasons. The caller
    observes only receipts that are proven to be in the log, signed by a key that was valid there.
    """

    promise: Promise
    entries: dict[int, int] = field(default_factory=dict)
    endings: dict[int, str] = field(default_factory=dict)
    _empty: set[int] = field(default_factory=set)

    def observe(self, index: int, receipt: Receipt) -> None:
        """Record the receipt if it was promised."""
        if self.promise.is_kept_by(receipt):
            self.entries[receipt.sampling.choice] = index
            self.endings[receipt.sampling.choice] = receipt.output.finish_reason
            if receipt.output.finish_reason == "error" and not receipt.output.tokens:
                self._empty.add(receipt.sampling.choice)

    @property
    def missing(self) -> list[int]:
        """Choices without a receipt in the log."""
        return [choice for choice in range(self.promise.choices) if choice not in self.entries]

    @property
    def without_output(self) -> list[int]:
        """Choices whose receipt has an error before any output, which keeps the promise only formally. A killed server
        leaves such receipts; a caller with another receipt of the same id has proof against it.
        """
        return sorted(self._empty)

    @property
    def is_kept(self) -> bool:
        return not self.missing

    def is_due(self, now: datetime) -> bool:
        return now > parse_timestamp(self.promise.due)


def open_with_any(data: bytes, epochs: Iterable[TrustedKeys]) -> Promise:
    """The promise, by the keys of any time of the log, because it has no index. Raises FormatError, SignatureError."""
    refused = SignatureError("no key is trusted to sign a promise")
    for trusted in epochs:
        try:
            return open_promise(data, trusted)
        except SignatureError as error:
            refused = error
    raise refused
