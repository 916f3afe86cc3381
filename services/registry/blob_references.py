"""Which blobs a head refers to: its own files, the manifest of its base, the config.json that this one names."""

from __future__ import annotations

from ledger.documents.base_manifest import BaseManifest
from ledger.documents.draft_head_manifest import DraftHeadManifest
from ledger.errors import FormatError
from services.registry.blobs import BlobStore
from services.registry.catalogue import HeadRow
from services.registry.errors import BaseUnknown, BlobMissing
from services.runtime.errors import DataLoss, NotFound

MAX_BASE_BYTES = 16 * 1024 * 1024
"""Of a base's manifest or its config.json."""


def read_base(base_cid: str, blobs: BlobStore) -> BaseManifest:
    """The manifest of a base, verified. Raises NotFound, FormatError, DataLoss."""
    return BaseManifest.from_bytes(blobs.read(base_digest(base_cid), MAX_BASE_BYTES))


def base_digest(base_cid: str) -> str:
    """Of the blob that holds the base's manifest."""
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
