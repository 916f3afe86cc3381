"""The rules for references of a document to earlier entries. The writer enforces them, verification checks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ledger.documents.audit import ACCUSATIONS, AGAIN, EXACT, REFERENCE, UNCHECKED, UNREPLAYABLE, Verdict
from ledger.documents.erasure import Erasure, Expiry, Retention, check_expiry, check_retention
from ledger.documents.halt import Halt, HaltState, Resume
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document
from ledger.errors import FormatError


@dataclass(frozen=True, slots=True)
class JudgedOutput:
    """The facts about a receipt's output that limit a verdict on it: whether another engine than kolm's computed it,
    and its number of tokens.
    """

    foreign: bool
    tokens: int

    @classmethod
    def of(cls, receipt: Receipt) -> JudgedOutput:
        return cls(receipt.engine is not None, receipt.output.tokens)


class References(Protocol):
    """The entries before the document, for references of documents."""

    def receipt_id_at(self, index: int) -> str | None:
        """The id of the receipt at `index`; None if that entry is not a receipt or does not exist yet."""
        ...

    def output_at(self, index: int) -> JudgedOutput | None:
        """The output of the receipt at `index`; None if it is not known any more."""
        ...

    def accuses(self, index: int) -> bool:
        """Whether the entry at `index` is a verdict that a halt may answer, one of ACCUSATIONS."""
        ...

    def retentions(self) -> Sequence[tuple[int, Retention]]:
        """Index and document of the retention policies, in order; policies after the document may be among them."""
        ...


def follow(index: int, document: Document, halts: HaltState, before: References) -> HaltState:
    """The halt state after `document` becomes entry `index`. Raises FormatError if it is not allowed there.

    A receipt cannot have seen a halt that is not in the log yet. A verdict or an erasure names a receipt and its index;
    a verdict has an outcome that exists for the receipt's engine, and compares at most the output's tokens. A halt
    names an accusation. A resume names an open halt of exactly its scope. An expiry erases the contents that the
    retention policies before it end.
    """
    if isinstance(document, Receipt):
        if document.halt_epoch > halts.epoch:
            raise FormatError("halt_epoch", f"is {document.halt_epoch}, but the log counts {halts.epoch} halts so far")
        return halts
    if isinstance(document, Verdict | Erasure) and before.receipt_id_at(document.receipt_index) != document.receipt_id:
        raise FormatError("receipt_index", f"entry {document.receipt_index} is not the receipt {document.receipt_id}")
    if isinstance(document, Verdict):
        output = before.output_at(document.receipt_index)
        if output is not None:
            _check_strength(document, foreign=output.foreign)
            _check_tokens(document, output.tokens)
    if isinstance(document, Retention):
        check_retention(document, _earlier(index, before))
    if isinstance(document, Expiry):
        check_expiry(index, document, _earlier(index, before))
    if isinstance(document, Halt):
        if not before.accuses(document.verdict_index):
            expected = " or ".join(ACCUSATIONS)
            raise FormatError("verdict_index", f"entry {document.verdict_index} is not a {expected} verdict")
        return halts.after_halt(index, document)
    if isinstance(document, Resume):
        return halts.after_resume(document)
    return halts


def _check_strength(verdict: Verdict, *, foreign: bool) -> None:
    """Raises FormatError if the outcome belongs to a check of the other kind of engine."""
    weaker = verdict.verification in (AGAIN, REFERENCE) or verdict.outcome == UNCHECKED
    if weaker == foreign or verdict.outcome == UNREPLAYABLE:
        return
    whose = "another engine than kolm's" if foreign else "kolm's own engine"
    raise FormatError("outcome", f"{verdict.outcome} is no outcome for entry {verdict.receipt_index}, of {whose}")


def _check_tokens(verdict: Verdict, tokens: int) -> None:
    """EXACT covers every token. A replay that deviates may have continued by a token after the end of the output."""
    field, deviation = "tokens_compared", verdict.deviation
    if deviation is not None and deviation.position > tokens:
        raise FormatError("deviation.position", f"is {deviation.position}, the output has {tokens} tokens")
    if verdict.outcome == EXACT and verdict.tokens_compared != tokens:
        raise FormatError(field, f"is {verdict.tokens_compared}, expected all {tokens} tokens of the output")
    if verdict.tokens_compared > tokens + (deviation is not None):
        raise FormatError(field, f"is {verdict.tokens_compared}, the output has {tokens} tokens")


def _earlier(index: int, before: References) -> list[tuple[int, Retention]]:
    return [(at, policy) for at, policy in before.retentions() if at < index]
