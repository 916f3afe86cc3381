"""Blobs that no head refers to: found, left alone while they are young, removed.

Uploads come before the publication that refers to them, so a blob without a head is either on its way or left over;
only its age tells. A slower publisher loses an upload and never a head: blobs are removed while nothing is proposed,
and a proposal checks its blobs while nothing is removed (`Catalogue.propose`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from ledger.documents.manifests import BaseManifest, DraftHeadManifest
from ledger.errors import FormatError
from services.registry.blobs import BlobStore, StoredBlob
from services.registry.catalogue import Catalogue, HeadRow
from services.registry.errors import BaseUnknown, BlobMissing
from services.runtime.errors import DataLoss, NotFound

_log = logging.getLogger(__name__)


MAX_BASE_BYTES = 16 * 1024 * 1024
"""Bytes of a base's manifest or its config.json."""


def read_base(base_cid: str, blobs: BlobStore) -> BaseManifest:
    """The manifest of a base, verified. Raises NotFound, FormatError, DataLoss."""
    return BaseManifest.from_bytes(blobs.read(base_digest(base_cid), MAX_BASE_BYTES))


def base_digest(base_cid: str) -> str:
    """The digest of the blob that holds the base's manifest."""
    return base_cid.removeprefix("cidv1:")


def check_whole(manifest: DraftHeadManifest, blobs: BlobStore) -> None:
    """Returns where every blob is there that the head refers to. Raises BlobMissing, BaseUnknown."""
    missing = [part.name for part in manifest.files if blobs.size(part.digest) is None]
    if missing:
        raise BlobMissing(missing)
    try:
        config = read_base(manifest.subject, blobs).model_config
    except (NotFound, FormatError) as error:
        raise BaseUnknown(manifest.subject, str(error)) from error
    if blobs.size(config.digest) is None:
        raise BaseUnknown(manifest.subject, "its config.json is missing")


class BlobReferences:
    """The digests that heads refer to. Each manifest is read once; it never changes."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._of_head: dict[str, frozenset[str]] = {}
        self._of_base: dict[str, frozenset[str]] = {}

    def of(self, row: HeadRow) -> frozenset[str]:
        """Raises DataLoss where the base's manifest is missing or damaged."""
        if row.head_cid not in self._of_head:
            files = DraftHeadManifest.from_bytes(row.manifest).files
            self._of_head[row.head_cid] = frozenset(file.digest for file in files) | self._base(row)
        return self._of_head[row.head_cid]

    def _base(self, row: HeadRow) -> frozenset[str]:
        if row.base_cid not in self._of_base:
            try:
                config = read_base(row.base_cid, self._blobs).model_config
            except (NotFound, FormatError, DataLoss) as error:
                raise DataLoss(
                    f"the references of {row.head_cid} are unknown: the manifest of its base cannot be read ({error}); "
                    "nothing more is removed until somebody pushes that head again",
                    reason="BLOB_DAMAGED",
                ) from error
            self._of_base[row.base_cid] = frozenset((base_digest(row.base_cid), config.digest))
        return self._of_base[row.base_cid]


BATCH = 500
"""Blobs that are removed while publications wait: one request to a bucket."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The counts of a collection: blobs that heads refer to, blobs that were too young, bytes of unfinished writes."""

    referenced: int
    young: int
    swept_bytes: int


class BlobCollection:
    """One pass over all blobs; iterate, then look at `summary`. Blocking; on any thread."""

    def __init__(self, catalogue: Catalogue, blobs: BlobStore, before: datetime, *, dry_run: bool) -> None:
        """Only what was written before `before` goes."""
        self._catalogue = catalogue
        self._blobs = blobs
        self._before = before
        self._dry_run = dry_run
        self._references = BlobReferences(blobs)
        self._referenced = self._young = self._swept = 0

    @property
    def summary(self) -> Summary:
        return Summary(self._referenced, self._young, self._swept)

    def __iter__(self) -> Iterator[Sequence[StoredBlob]]:
        """The removed blobs, batch by batch; those that would go in a dry run.

        Raises DataLoss where references cannot be read, Unavailable; batches yielded before are removed.
        """
        referenced = {digest for row in self._catalogue.rows() for digest in self._references.of(row)}
        batch: list[StoredBlob] = []
        for blob in self._blobs.listed():
            if blob.digest in referenced:
                self._referenced += 1
            elif blob.modified >= self._before:
                self._young += 1
            else:
                batch.append(blob)
            if len(batch) == BATCH:
                yield self._removed(batch)
                batch = []
        if batch:
            yield self._removed(batch)
        if not self._dry_run:
            self._swept = self._blobs.sweep(self._before)

    def _removed(self, batch: Sequence[StoredBlob]) -> Sequence[StoredBlob]:
        """Blobs that still have no head, now that nobody can propose one."""
        if self._dry_run:
            return batch
        with self._catalogue.removing() as rows:
            referenced = {digest for row in rows for digest in self._references.of(row)}
            gone = [blob for blob in batch if blob.digest not in referenced]
            self._blobs.remove([blob.digest for blob in gone])
        self._referenced += len(batch) - len(gone)
        for blob in gone:
            _log.info("removed %s, %d bytes, written %s: no head refers to it", blob.digest, blob.size, blob.modified)
        return gone
