"""The memory of a monitor: the facts about a log that spare reading it again."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ledger.audit.log_walk import SeenEntries
from ledger.monitor.finding import Evidence


class MonitorMemory(SeenEntries, Protocol):
    """Durability: what was written in a batch is on disk when the batch is left; a crash leaves all of it or nothing.
    Concurrency: one process, one thread. Errors: StoreError.
    """

    def load(self) -> dict[str, Any] | None:
        """The summary that was saved last; None for a log that was never seen."""
        ...

    def save(self, summary: dict[str, Any]) -> None:
        """Keep a summary, JSON, in the place of the last one."""
        ...

    def batch(self) -> AbstractContextManager[None]:
        """All writes inside, or, where an error leaves it, none."""
        ...

    def holds(self, digests: Iterable[bytes]) -> int:
        """How many of some `kept_digest`s the receipts have."""
        ...

    def unreplayable(self, since: int) -> tuple[int, int]:
        """How many receipts from an index on have a newest verdict of `NO_ANSWERS`, and the first's index."""
        ...

    def accuse(self, kind: str, evidence: Evidence) -> None:
        """Keep evidence; the same once, and a bounded number in all."""
        ...

    def accusations(self, kind: str) -> list[Evidence]:
        """The evidence of a kind, the oldest first."""
        ...

    def told(self) -> set[str]:
        """Keys of the findings that somebody has been told of."""
        ...

    def tell(self, keys: Iterable[str]) -> None:
        """Keep these keys in the place of the last ones."""
        ...
