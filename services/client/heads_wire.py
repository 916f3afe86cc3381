"""Converts the registry's messages to values."""

from __future__ import annotations

from datetime import UTC

from kolm.registry.v1 import heads_pb2, registry_pb2
from services.client import heads as values


def head(message: heads_pb2.Head) -> values.Head:
    return values.Head(
        head_cid=message.head_cid,
        base_cid=message.base_cid,
        manifest=message.manifest,
        size=message.size,
        publications=tuple(map(_publication, message.publications)),
        withdrawal=_withdrawal(message.withdrawal) if message.HasField("withdrawal") else None,
        kscores=tuple(map(_kscore, message.kscores)),
    )


def missing(message: registry_pb2.MissingBlob) -> values.MissingBlob:
    return values.MissingBlob("sha256:" + message.blob.digest.hex(), message.blob.size, message.committed_size)


def stored(message: heads_pb2.Blob) -> values.StoredBlob:
    return values.StoredBlob("sha256:" + message.digest.hex(), message.size)


def blob(digest: str, size: int) -> heads_pb2.Blob:
    """`digest` is `sha256:<hex>`."""
    return heads_pb2.Blob(digest=bytes.fromhex(digest.removeprefix("sha256:")), size=size)


def _publication(message: heads_pb2.Publication) -> values.Publication:
    return values.Publication(
        message.name,
        message.envelope,
        message.ledger_index,
        message.publisher,
        message.issue_time.ToDatetime(UTC),
    )


def _withdrawal(message: heads_pb2.Withdrawal) -> values.Withdrawal:
    return values.Withdrawal(message.envelope, message.ledger_index, message.reason, message.issue_time.ToDatetime(UTC))


def _kscore(message: heads_pb2.KScore) -> values.KScore:
    return values.KScore(
        adapter_cid=message.adapter_cid if message.HasField("adapter_cid") else None,
        mean_acceptance=message.mean_acceptance,
        status=heads_pb2.KScoreStatus.Name(message.status).removeprefix("K_SCORE_STATUS_"),
        envelope=message.envelope,
        ledger_index=message.ledger_index,
        measured_at=message.measure_time.ToDatetime(UTC),
    )
