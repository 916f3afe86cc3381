"""Bundles for callers: their contents, and their bytes as they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from kolm.ledger.v1 import ledger_pb2
from ledger.bundle.export import Export
from ledger.bundle.folder import archive
from ledger.encoding.text_forms import timestamp
from ledger.errors import NotFound
from ledger.keys.ed25519 import ROLES
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.reader import LedgerReader
from services.ledger.checkpoints import Checkpoints, CosignedCheckpoint
from services.ledger.visibility import check_content, check_receipt, no_content, whole_log
from services.runtime.credentials import Principal
from services.runtime.errors import InvalidArgument

_MOST_RECEIPTS = 1000
_PIECE_BYTES = 2**20


def bundle_pieces(
    reader: LedgerReader,
    trusted: TrustedKeys,
    request: ledger_pb2.ExportBundleRequest,
    checkpoints: Checkpoints,
    caller: Principal,
) -> Iterator[bytes]:
    """The pieces of a .tar.gz under the newest checkpoint or, with witnesses, the newest checkpoint with a quorum that
    covers the request. Blocking, as is its iteration. Callers who do not see the whole log get bundles of their own
    receipts.

    Raises InvalidArgument, PermissionDenied, NotFound (of the ledger), ProofError.
    """
    if len(request.receipt_ids) > _MOST_RECEIPTS:
        raise InvalidArgument("receipt_ids", f"expected at most {_MOST_RECEIPTS}, got {len(request.receipt_ids)}")
    if not request.receipt_ids or request.HasField("start_index") or request.HasField("end_index"):
        whole_log(caller, "a range")
    indexes = reader.indexes_of(request.receipt_ids)
    _check(reader, indexes, request, caller)
    head = _head(checkpoints, max([*indexes, request.end_index - 1]))
    start, end = _range(request, head.checkpoint.size)
    wanted = Export(
        checkpoint=head.note,
        start=start,
        end=end,
        exported_at=timestamp(datetime.now(UTC)),
        indexes=indexes,
        earlier=checkpoints.earlier(head.checkpoint.size),
        with_content=request.include_content,
        tenant=None if caller.sees_all else caller.tenant,
        policy=None if checkpoints.policy is None else checkpoints.policy.to_bytes(),
        keys={role: trusted.keys(role) for role in ROLES},
    )
    return _cut(archive(reader.export(wanted)))


def _check(
    reader: LedgerReader, indexes: Sequence[int], request: ledger_pb2.ExportBundleRequest, caller: Principal
) -> None:
    if request.include_content and caller.sees_all and "audit" not in caller.roles:
        raise no_content()
    for index in () if caller.sees_all else indexes:
        entry = reader.entry(index)
        check_receipt(caller, index, entry)
        if request.include_content:
            check_content(caller, index, entry)


def _head(checkpoints: Checkpoints, last: int) -> CosignedCheckpoint:
    """The checkpoint for the proof of entry `last`."""
    try:
        witnessed = checkpoints.witnessed()
    except NotFound:
        return checkpoints.newest()
    return witnessed if last < witnessed.checkpoint.size else checkpoints.newest()


def _range(request: ledger_pb2.ExportBundleRequest, size: int) -> tuple[int, int]:
    """[start, end), the complete range of the bundle; empty if only receipts are requested."""
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
