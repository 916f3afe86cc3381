"""Receipts in a halted scope: served by a service that knew of the halt, or long after the halt by a service that
should have known.

A receipt's index shows which halts were in the log before it. Its epoch shows which of them its service knew. The times
show how long the service had to learn of them, and expose a receipt that was withheld until a resume was in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ledger.audit.log_clock import Moment
from ledger.documents.audit import Draw, Verdict
from ledger.documents.halt import Halt, Resume, Scope, scopes_of
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document
from ledger.encoding.text_forms import moved

GRACE_SECONDS = 300
"""Tolerance for clock skew, for a service's polling interval, and for a short outage of the ledger."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A receipt at `index`, issued in the scope of the halt at `halt_index`. `knew` is true if its epoch shows that
    the service knew the halt. Otherwise the receipt was issued more than GRACE_SECONDS after the halt.
    """

    index: int
    halt_index: int
    knew: bool

    def __str__(self) -> str:
        heard = (
            "by a service that knew"
            if self.knew
            else f"more than {GRACE_SECONDS} s later, by a service that did not know"
        )
        return f"entry {self.index}: was served in a scope that entry {self.halt_index} had halted, {heard}"


@dataclass(frozen=True, slots=True)
class _Span:
    """A halt and its interval by the log's clock; `ends` is None while it is open."""

    halt_index: int
    epoch: int
    scope: Scope
    begins: str
    ends: str | None = None


@dataclass(slots=True)
class HaltWatch:
    """Finds receipts in halted scopes while it reads a log. `reference_rules.follow` has checked the references."""

    breaches: list[Breach] = field(default_factory=list)
    _spans: list[_Span] = field(default_factory=list)
    _auditors_clock: str = ""

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Index of the receipt and of the halt, for each breach."""
        return tuple((breach.index, breach.halt_index) for breach in self.breaches)

    def take_breaches(self) -> tuple[Breach, ...]:
        """Return the breaches found so far and forget them, for a caller that keeps its own count."""
        found, self.breaches = tuple(self.breaches), []
        return found

    def to_document(self) -> dict[str, Any]:
        """The fold as JSON, to continue from, without its breaches."""
        return {
            "spans": [asdict(span) | {"scope": span.scope.to_document()} for span in self._spans],
            "auditors_clock": self._auditors_clock,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> HaltWatch:
        """Restore the state from `to_document`. Trusts the document: the caller has stored it."""
        return cls(
            _spans=[_Span(**span | {"scope": Scope(**span["scope"])}) for span in document["spans"]],
            _auditors_clock=document["auditors_clock"],
        )

    def lifted(self, served: Iterable[Scope], after: int) -> bool:
        """Whether each of these scopes was halted after entry `after`, and all such halts have been resumed."""
        spans = [span for span in self._spans if span.halt_index > after]
        covering = [
            [span for span in spans if span.scope.covers(each.base_cid, each.method, each.head_cid)] for each in served
        ]
        return all(halts and all(span.ends is not None for span in halts) for halts in covering)

    def observe(self, index: int, document: Document, moment: Moment) -> None:
        """Fold the next entry; `moment` is its time by the log's clock."""
        match document:
            case Receipt():
                self._check(index, document, moment.time)
            case Halt():
                self._spans.append(_Span(index, len(self._spans) + 1, document.scope, moment.time))
                self._auditors_clock = max(self._auditors_clock, moment.time)
            case Verdict() | Draw():
                self._auditors_clock = max(self._auditors_clock, moment.time)
            case Resume():
                self._end(document, moment.time)

    def _end(self, resume: Resume, time: str) -> None:
        """End a halt at the time of its resume, or of the auditors' latest earlier document if that is later: operators
        may date a resume too early.
        """
        ends = max(time, self._auditors_clock)
        ended = (replace(span, ends=ends) if span.halt_index == resume.halt_index else span for span in self._spans)
        self._spans = list(ended)

    def _check(self, index: int, receipt: Receipt, time: str) -> None:
        if not self._spans:
            return
        served = scopes_in(receipt)
        for span in self._spans:
            covered = any(span.scope.covers(each.base_cid, each.method, each.head_cid) for each in served)
            if covered and _is_within(span, receipt, time):
                self.breaches.append(Breach(index, span.halt_index, receipt.halt_epoch >= span.epoch))
                return


def scopes_in(receipt: Receipt) -> tuple[Scope, ...]:
    """The scopes that a receipt was served in: those in doubt after a deviation of its output."""
    block = receipt.spec_decode
    return scopes_of(receipt.base_cid, block.method, block.head_cid, block.passes_by_method)


def _is_within(span: _Span, receipt: Receipt, time: str) -> bool:
    if span.ends is not None and time >= moved(span.ends, -GRACE_SECONDS):
        return False  # after the resume, or so shortly before it that the clocks may be wrong
    return receipt.halt_epoch >= span.epoch or time > moved(span.begins, GRACE_SECONDS)
