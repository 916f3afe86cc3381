"""Halts and resumes of speculation, and the halt state of a log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.encoding.document import Cid, Count, Document, Name, Part, Reason, Time, written
from ledger.errors import FormatError


class Scope(Part, frozen=True):
    """The scope of a halt: one method on one base, with one head, or with any head if `head_cid` is null."""

    base_cid: Cid
    method: Name
    head_cid: Cid | None = written(None)

    def covers(self, base_cid: str, method: str, head_cid: str | None) -> bool:
        return (self.base_cid, self.method) == (base_cid, method) and self.head_cid in (None, head_cid)

    def check_method(self) -> None:
        """Raises FormatError for a scope that cannot be halted."""
        if self.method == "off":
            raise FormatError("scope.method", "expected a method of speculation, not off")


def scopes_of(base_cid: str, method: str, head_cid: str | None, others: Iterable[str] = ()) -> tuple[Scope, ...]:
    """The scopes in doubt after a deviation of one output: every method that drafted for it, the first method first
    (`others` may repeat it, and name `off`). The head belongs to the first method; a later method with heads is halted
    with all of its heads.
    """
    joined = (other for other in sorted(others) if other not in (method, "off"))
    return (Scope(base_cid, method, head_cid), *(Scope(base_cid, other) for other in joined))


class Halt(Document, tag="kolm.halt.v1", frozen=True):
    """A `kolm.halt.v1` document, signed by a key of role `auditor`; answers the accusation at `verdict_index`: a
    DEVIATION, or an INCONSISTENT if its policy halts on these.
    """

    SIGNERS: ClassVar = ("auditor",)

    scope: Scope
    verdict_index: Count
    reason: Reason
    issued_at: Time

    def check(self) -> None:
        self.scope.check_method()


class Resume(Document, tag="kolm.resume.v1", frozen=True):
    """A `kolm.resume.v1` document. Signed by a key of role `operator`; lifts the open halt at `halt_index`."""

    SIGNERS: ClassVar = ("operator",)

    scope: Scope
    halt_index: Count
    reason: Reason
    issued_at: Time

    def check(self) -> None:
        self.scope.check_method()


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
        """Raises FormatError if `halt_index` is not an open halt of exactly the resume's scope."""
        lifted = [halt for halt in self.open if (halt.halt_index, halt.scope) == (resume.halt_index, resume.scope)]
        if not lifted:
            raise FormatError("halt_index", f"entry {resume.halt_index} is not an open halt of this scope")
        return HaltState(self.epoch, tuple(halt for halt in self.open if halt not in lifted))

    def to_document(self) -> dict[str, Any]:
        """The state as JSON, to continue from."""
        return {
            "epoch": self.epoch,
            "open": [[each.halt_index, each.halt.to_document(), each.epoch] for each in self.open],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> HaltState:
        """Read the output of `to_document`, which the caller has kept."""
        halts = (OpenHalt(index, Halt.from_document(halt), epoch) for index, halt, epoch in document["open"])
        return cls(document["epoch"], tuple(halts))
