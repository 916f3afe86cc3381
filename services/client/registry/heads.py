"""Answers of a registry, as frozen values. `ledger.audit.draft_head_evidence` checks the signed bytes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Publication:
    """A name that a head bears, and the signed word behind it."""

    name: str
    envelope: bytes
    ledger_index: int
    publisher: str
    issued_at: datetime


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The end of a head."""

    envelope: bytes
    ledger_index: int
    reason: str
    issued_at: datetime


@dataclass(frozen=True, slots=True)
class KScore:
    """How well a head drafts for an adapter; None for the bare base. `status` is GOOD or NEEDS_RETRAINING."""

    adapter_cid: str | None
    mean_acceptance: float
    status: str
    envelope: bytes
    ledger_index: int
    measured_at: datetime


@dataclass(frozen=True, slots=True)
class Head:
    """A head under all of its names, oldest first."""

    head_cid: str
    base_cid: str
    manifest: bytes
    size: int
    publications: tuple[Publication, ...]
    withdrawal: Withdrawal | None
    kscores: tuple[KScore, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(publication.name for publication in self.publications)


@dataclass(frozen=True, slots=True)
class MissingBlob:
    """A blob that the registry does not have, and how much of it an interrupted upload left."""

    digest: str
    size: int
    committed_size: int


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A blob of the registry: its digest, `sha256:<hex>`, and bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Collected:
    """Blobs that a collection removed (or would have), and those that it left: of heads, or too young.

    `swept_bytes` were unfinished writes of a registry that was killed.
    """

    removed: tuple[StoredBlob, ...]
    referenced: int
    young: int
    swept_bytes: int

    @property
    def freed(self) -> int:
        """Bytes."""
        return sum(blob.size for blob in self.removed) + self.swept_bytes
