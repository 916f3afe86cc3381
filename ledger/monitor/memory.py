"""The contract of a monitor's memory: facts about a log, so that it is read once."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ledger.audit.log_walk import SeenEntries
from ledger.documents.halt import Scope
from ledger.monitor.finding import Evidence


class MonitorMemory(SeenEntries, Protocol):
    """Durability: the writes of a batch are on disk at its end; a crash leaves all of them or none. Concurrency: one
    process, one thread. Errors: StoreError.
    """

    def load(self) -> dict[str, Any] | None:
        """The last saved summary; None for a new log."""
        ...

    def save(self, summary: dict[str, Any]) -> None:
        """Replace the summary, which is JSON."""
        ...

    def batch(self) -> AbstractContextManager[None]:
        """A transaction: all writes inside, or none if the block raises."""
        ...

    def served_in(self, index: int) -> tuple[Scope, ...]:
        """The scopes of the receipt at `index` (`halt_breach.scopes_in`)."""
        ...

    def holds(self, digests: Iterable[bytes]) -> int:
        """The number of these `kept_digest`s that have a receipt."""
        ...

    def unreplayable(self, since: int) -> tuple[int, int]:
        """The number of receipts from an index on whose newest verdict is in `NO_ANSWERS`, and the first one's
        index.
        """
        ...

    def accuse(self, kind: str, evidence: Evidence) -> None:
        """Keep evidence once, and a bounded number of each kind."""
        ...

    def accusations(self, kind: str) -> list[Evidence]:
        """The evidence of a kind, the oldest first."""
        ...

    def reported(self) -> set[str]:
        """The keys of the reported findings."""
        ...

    def keep_reported(self, keys: Iterable[str]) -> None:
        """Replace the keys of the reported findings."""
        ...
