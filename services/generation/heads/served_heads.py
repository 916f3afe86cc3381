"""The heads of this server: those that draft, those refused and why, those that may be picked now. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.runtime.errors import FailedPrecondition, NotFound


@dataclass(frozen=True, slots=True)
class ServedHead:
    """A head that is loaded. `name` and `publication_index` are None for a folder that was given directly."""

    cid: str
    folder: Path
    name: str | None = None
    publication_index: int | None = None

    @property
    def drafter(self) -> str:
        """Its method's name in the engine."""
        return f"eagle3/{self.cid}"

    def answers(self, reference: str) -> bool:
        """Whether `cidv1:sha256:…`, `name` or `name@sha256:<prefix>` can mean this head."""
        name, _, digits = reference.partition("@sha256:")
        return reference == self.cid or (name == self.name and self.cid.startswith(f"cidv1:sha256:{digits}"))


@dataclass(frozen=True, slots=True)
class RefusedHead:
    """A head that was asked for at start and not loaded; `reason` is what requests that name it are told."""

    reference: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class HeadState:
    """Heads in the order of preference, and what the ledger says about them.

    `withdrawn` maps identifiers to reasons. `unfit` are pairs of head and adapter (None: the bare base) whose newest
    k-score is below its threshold. `weak` are heads without a k-score that say of themselves that they are.
    """

    served: tuple[ServedHead, ...] = ()
    refused: tuple[RefusedHead, ...] = ()
    withdrawn: Mapping[str, str] = field(default_factory=dict)
    unfit: frozenset[tuple[str, str | None]] = frozenset()
    weak: frozenset[str] = frozenset()

    @property
    def all_weak(self) -> bool:
        return bool(self.served) and all(head.cid in self.weak for head in self.served)

    def fit(self, adapter_cid: str | None, *, only_fit: bool) -> tuple[list[ServedHead], str | None]:
        """The heads that may draft for this adapter, or why there is none, as receipts say it."""
        found, reason = [], "no_head"
        for head in self.served:
            if head.cid in self.withdrawn:
                reason = "head_withdrawn"
            elif only_fit and (head.cid, adapter_cid) in self.unfit:
                reason = "head_needs_retraining"
            else:
                found.append(head)
        return found, None if found else reason

    def named(self, reference: str) -> ServedHead:
        """The one head that a request names.

        Raises NotFound; FailedPrecondition with the reason for which it is not served.
        """
        found = [head for head in self.served if head.answers(reference)]
        if not found:
            self._refuse(reference)
        if len(found) > 1:
            names = ", ".join(head.cid for head in found)
            message = f"{reference!r} names several heads: {names}; write more digits"
            raise FailedPrecondition(message, reason="AMBIGUOUS_REFERENCE", metadata={"candidates": names})
        head = found[0]
        if head.cid in self.withdrawn:
            message = f"{head.cid} was withdrawn: {self.withdrawn[head.cid]}"
            raise FailedPrecondition(message, reason="HEAD_WITHDRAWN", metadata={"head_cid": head.cid})
        return head

    def _refuse(self, reference: str) -> None:
        for refused in self.refused:
            if refused.reference == reference:
                raise FailedPrecondition(f"{reference} is not served: {refused.message}", reason=refused.reason)
        loaded = ", ".join(f"{head.name or head.folder} ({head.cid})" for head in self.served)
        hint = f"loaded are {loaded}" if loaded else "no head is loaded here"
        raise NotFound("eagle_head", reference, f"{hint}; leave spec_decode.eagle_head out for the base's own")
