"""Halts and resumes of speculation, and the state that the log's halts and resumes add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.encoding.fields import Fields
from ledger.errors import FormatError


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a halt: one method on one base, with one head, or with any head where `head_cid` is null."""

    base_cid: str
    method: str
    head_cid: str | None = None

    def covers(self, base_cid: str, method: str, head_cid: str | None) -> bool:
        return (self.base_cid, self.method) == (base_cid, method) and self.head_cid in (None, head_cid)

    def to_document(self) -> dict[str, Any]:
        return {"base_cid": self.base_cid, "method": self.method, "head_cid": self.head_cid}

    @classmethod
    def from_fields(cls, fields: Fields) -> Scope:
        scope = cls(
            base_cid=fields.cid("base_cid"),
            method=fields.name("method"),
            head_cid=fields.optional("head_cid", fields.cid),
        )
        fields.close()
        if scope.method == "off":
            raise FormatError(fields.path("method"), "expected a method of speculation, which off is not")
        return scope


def scopes_of(
    base_cid: str, method: str, head_cid: str | None, passes_by_method: Iterable[tuple[str, int]] = ()
) -> tuple[Scope, ...]:
    """The scopes that a deviation of one output puts in doubt: every method that drafted for it, the first one first.

    The head is that of the first method; an eagle3 that joined later stands for every head.
    """
    others = (other for other, _ in passes_by_method if other not in (method, "off"))
    return (Scope(base_cid, method, head_cid), *(Scope(base_cid, other) for other in others))


@dataclass(frozen=True, slots=True)
class Halt:
    """A `kolm.halt.v1` document, signed by a key of role `auditor`; answers the DEVIATION at `verdict_index`."""

    TYPE: ClassVar[str] = "kolm.halt.v1"

    scope: Scope
    verdict_index: int
    reason: str
    issued_at: str

    def to_document(self) -> dict[str, Any]:
        return {
            "type": self.TYPE,
            "scope": self.scope.to_document(),
            "verdict_index": self.verdict_index,
            "reason": self.reason,
            "issued_at": self.issued_at,
        }

    @classmethod
    def from_document(cls, document: object) -> Halt:
        """The halt that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        halt = cls(
            scope=Scope.from_fields(fields.part("scope")),
            verdict_index=fields.integer("verdict_index"),
            reason=fields.text("reason", longest=2048),
            issued_at=fields.time("issued_at"),
        )
        fields.close()
        return halt


@dataclass(frozen=True, slots=True)
class Resume:
    """A `kolm.resume.v1` document. Signed by a key of role `operator`; lifts the open halt at `halt_index`."""

    TYPE: ClassVar[str] = "kolm.resume.v1"

    scope: Scope
    halt_index: int
    reason: str
    issued_at: str

    def to_document(self) -> dict[str, Any]:
        return {
            "type": self.TYPE,
            "scope": self.scope.to_document(),
            "halt_index": self.halt_index,
            "reason": self.reason,
            "issued_at": self.issued_at,
        }

    @classmethod
    def from_document(cls, document: object) -> Resume:
        """The resume that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        resume = cls(
            scope=Scope.from_fields(fields.part("scope")),
            halt_index=fields.integer("halt_index"),
            reason=fields.text("reason", longest=2048),
            issued_at=fields.time("issued_at"),
        )
        fields.close()
        return resume


@dataclass(frozen=True, slots=True)
class OpenHalt:
    """A halt that no resume has lifted, the index of its entry, and the epoch that it began."""

    halt_index: int
    halt: Halt
    epoch: int

    @property
    def scope(self) -> Scope:
        return self.halt.scope


@dataclass(frozen=True, slots=True)
class HaltState:
    """The fold of all halts and resumes up to some entry. `epoch` counts the halts so far; resumes do not lower it."""

    epoch: int = 0
    open: tuple[OpenHalt, ...] = ()

    def after_halt(self, index: int, halt: Halt) -> HaltState:
        return HaltState(self.epoch + 1, (*self.open, OpenHalt(index, halt, self.epoch + 1)))

    def after_resume(self, resume: Resume) -> HaltState:
        """Raises FormatError where `halt_index` is no open halt of exactly the resume's scope."""
        lifted = [halt for halt in self.open if (halt.halt_index, halt.scope) == (resume.halt_index, resume.scope)]
        if not lifted:
            raise FormatError("halt_index", f"entry {resume.halt_index} is no open halt of this scope")
        return HaltState(self.epoch, tuple(halt for halt in self.open if halt not in lifted))

    def find(self, base_cid: str, method: str, head_cid: str | None = None) -> OpenHalt | None:
        """The oldest open halt that covers this way of serving, None where it may be served."""
        return next((halt for halt in self.open if halt.scope.covers(base_cid, method, head_cid)), None)
