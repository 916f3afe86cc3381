"""Receipts of a promise that are in a log, and whether its deadline has passed. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from ledger.documents.promise import Promise, open_promise
from ledger.documents.receipt import OutputPart, Receipt
from ledger.encoding.text_forms import parse_timestamp
from ledger.errors import SignatureError
from ledger.keys.trusted_keys import TrustedKeys


@dataclass(slots=True)
class Fulfilment:
    """The receipts of a promise: `entries` has their indexes, `outputs` their outputs, both by choice, of the newest
    receipt. The caller observes only receipts that are proven to be in the log, signed by a key that was valid
    at their index.
    """

    promise: Promise
    entries: dict[int, int] = field(default_factory=dict)
    outputs: dict[int, OutputPart] = field(default_factory=dict)

    def observe(self, index: int, receipt: Receipt) -> None:
        """Record the receipt if it was promised."""
        if self.promise.covers(receipt):
            self.entries[receipt.sampling.choice] = index
            self.outputs[receipt.sampling.choice] = receipt.output

    @property
    def finish_reasons(self) -> dict[int, str]:
        return {choice: output.finish_reason for choice, output in self.outputs.items()}

    @property
    def missing(self) -> list[int]:
        """Choices without a receipt in the log."""
        return [choice for choice in range(self.promise.choices) if choice not in self.entries]

    @property
    def without_output(self) -> list[int]:
        """Choices whose receipt has the finish reason `error` and no output. A server signs these after a crash for
        requests that it lost; they keep the promise only formally. A caller that has another receipt with the same id
        can prove the contradiction.
        """
        outputs = sorted(self.outputs.items())
        return [choice for choice, output in outputs if output.finish_reason == "error" and not output.tokens]

    @property
    def is_kept(self) -> bool:
        return not self.missing

    def is_overdue(self, now: datetime) -> bool:
        """Whether the deadline has passed."""
        return now > parse_timestamp(self.promise.due)


def open_promise_with_any_key(data: bytes, epochs: Iterable[TrustedKeys]) -> Promise:
    """Open a promise with the keys of any period of the log: it is not an entry, so no index names its period.

    Raises FormatError, SignatureError.
    """
    refused = SignatureError("no key is trusted to sign a promise")
    for trusted in epochs:
        try:
            return open_promise(data, trusted)
        except SignatureError as error:
            refused = error
    raise refused
