"""Bundles for whoever asks: what goes into one, and its bytes as they are made."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from kolm.ledger.v1 import ledger_pb2
from ledger.bundle_archive import archive
from ledger.bundle_export import Export
from ledger.keys import ROLES, TrustedKeys
from ledger.reader import LedgerReader
from ledger.timestamp import timestamp
from services.runtime.errors import InvalidArgument

_MOST_RECEIPTS = 1000
_PIECE_BYTES = 2**20


def export(reader: LedgerReader, trusted: TrustedKeys, request: ledger_pb2.ExportBundleRequest) -> Iterator[bytes]:
    """The pieces of a .tar.gz under the newest checkpoint. Blocking, as its iteration is.

    Raises InvalidArgument, NotFound (of the ledger), ProofError.
    """
    if len(request.receipt_ids) > _MOST_RECEIPTS:
        raise InvalidArgument("receipt_ids", f"expected at most {_MOST_RECEIPTS}, got {len(request.receipt_ids)}")
    head = reader.head()
    start, end = _range(request, head.size)
    wanted = Export(
        checkpoint=head.note,
        start=start,
        end=end,
        exported_at=timestamp(datetime.now(UTC)),
        indexes=reader.indexes_of(request.receipt_ids),
        with_content=request.include_content,
        keys={role: trusted.keys(role) for role in ROLES},
    )
    return _cut(archive(reader.export(wanted)))


def _range(request: ledger_pb2.ExportBundleRequest, size: int) -> tuple[int, int]:
    """[start, end) of what nothing is left out of; empty where only receipts are asked for."""
    if not request.HasField("start_index") and not request.HasField("end_index"):
        return (0, 0) if request.receipt_ids else (0, size)
    start = request.start_index
    end = request.end_index if request.HasField("end_index") else size
    if start > end:
        raise InvalidArgument("start_index", f"expected at most the end of the range, {end}, got {start}")
    return start, end


def _cut(pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        for at in range(0, len(piece), _PIECE_BYTES):
            yield piece[at : at + _PIECE_BYTES]
