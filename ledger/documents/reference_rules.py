"""The rules for references of a document to earlier entries. The writer enforces them, verification checks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ledger.documents.audit import AGAIN, DEVIATION, REFERENCE, UNCHECKED, UNREPLAYABLE, Verdict
from ledger.documents.erasure import Erasure, Expiry, Retention, check_expiry, check_retention
from ledger.documents.halt import Halt, HaltState, Resume
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document
from ledger.errors import FormatError


class References(Protocol):
    """The entries before the document, as far as documents refer to them."""

    def receipt_id_at(self, index: int) -> str | None:
        """The id of the receipt at `index`; None where that entry is not a receipt or does not exist yet."""
        ...

    def foreign_at(self, index: int) -> bool | None:
        """Whether the receipt at `index` is of another engine than kolm's; None where that is not known any more."""
        ...

    def outcome_at(self, index: int) -> str | None:
        """The outcome of the verdict at `index`; None where that entry is not a verdict or does not exist yet."""
        ...

    def retentions(self) -> Sequence[tuple[int, Retention]]:
        """Index and document of the retention policies, in order; later ones than the document's may be among them."""
        ...


def follow(index: int, document: Document, halts: HaltState, before: References) -> HaltState:
    """The halt state after `document` becomes entry `index`. Raises FormatError where it may not stand there.

    A receipt cannot have seen a halt that is not in the log yet. A verdict or an erasure names a receipt and its index;
    a verdict says what can be said of the engine that the receipt names. A halt names a DEVIATION. A resume names an
    open halt of exactly its scope, and is not dated before it. An expiry erases what the retention policies before it
    say.
    """
    if isinstance(document, Receipt):
        if document.halt_epoch > halts.epoch:
            raise FormatError("halt_epoch", f"is {document.halt_epoch}, but the log counts {halts.epoch} halts so far")
        return halts
    if isinstance(document, Verdict | Erasure) and before.receipt_id_at(document.receipt_index) != document.receipt_id:
        raise FormatError("receipt_index", f"entry {document.receipt_index} is not the receipt {document.receipt_id}")
    if isinstance(document, Verdict):
        _check_strength(document, before.foreign_at(document.receipt_index))
    if isinstance(document, Retention):
        check_retention(document, _earlier(index, before))
    if isinstance(document, Expiry):
        check_expiry(index, document, _earlier(index, before))
    if isinstance(document, Halt):
        if before.outcome_at(document.verdict_index) != DEVIATION:
            raise FormatError("verdict_index", f"entry {document.verdict_index} is not a {DEVIATION} verdict")
        return halts.after_halt(index, document)
    if isinstance(document, Resume):
        after = halts.after_resume(document)
        _check_after_halt(document, halts)
        return after
    return halts


def _check_strength(verdict: Verdict, foreign: bool | None) -> None:
    """Checks of another engine's output say nothing of ours, and ours nothing of theirs."""
    weaker = verdict.verification in (AGAIN, REFERENCE) or verdict.outcome == UNCHECKED
    if foreign is None or weaker == foreign or verdict.outcome == UNREPLAYABLE:
        return
    whose = "another engine than kolm's" if foreign else "kolm's own engine"
    raise FormatError("outcome", f"{verdict.outcome} cannot be said of entry {verdict.receipt_index}, of {whose}")


def _earlier(index: int, before: References) -> list[tuple[int, Retention]]:
    return [(at, policy) for at, policy in before.retentions() if at < index]


def _check_after_halt(resume: Resume, halts: HaltState) -> None:
    """Otherwise a request served in between would look as if it had been served after the resume."""
    halted_at = next(halt.halt.issued_at for halt in halts.open if halt.halt_index == resume.halt_index)
    if resume.issued_at < halted_at:
        raise FormatError("issued_at", f"is {resume.issued_at}, before the halt that it lifts, of {halted_at}")
