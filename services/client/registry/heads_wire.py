"""Converts the registry's messages to values."""

from __future__ import annotations

from datetime import UTC

from kolm.registry.v1 import heads_pb2, registry_pb2
from services.client.plain_value import plain_value
from services.client.registry import heads as values


def head(message: heads_pb2.Head) -> values.Head:
    return plain_value(
        values.Head,
        message,
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
    return plain_value(values.Publication, message, issued_at=message.issue_time.ToDatetime(UTC))


def _withdrawal(message: heads_pb2.Withdrawal) -> values.Withdrawal:
    return plain_value(values.Withdrawal, message, issued_at=message.issue_time.ToDatetime(UTC))


def _kscore(message: heads_pb2.KScore) -> values.KScore:
    status = heads_pb2.KScoreStatus.Name(message.status).removeprefix("K_SCORE_STATUS_")
    return plain_value(values.KScore, message, status=status, measured_at=message.measure_time.ToDatetime(UTC))
