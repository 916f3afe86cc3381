"""KolmError to google.rpc.Status (AIP-193): ErrorInfo always, the other details if there are any."""

from __future__ import annotations

from google.protobuf import duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from services.runtime.errors import KolmError, QuotaViolation, ResourceExhausted

DOMAIN = "kolm"
DETAILS_KEY = "grpc-status-details-bin"
"""The trailing metadata key under which gRPC carries a serialised google.rpc.Status."""

# Trailers share gRPC's 8 KiB metadata limit, and a status past it would reach the caller as another error. These
# limits, in UTF-8 bytes, stay below it with every byte of the message percent-encoded and the details in base64.
_MESSAGE_BYTES = 512
_FIELD_BYTES = 128
_DESCRIPTION_BYTES = 256
_MOST_VIOLATIONS = 8


def to_status(error: KolmError, request_id: str) -> status_pb2.Status:
    """The status a caller receives; `request_id` goes into ErrorInfo's metadata."""
    number, _name = error.code.value
    status = status_pb2.Status(code=number, message=_clip(error.message))
    for detail in _details(error, request_id):
        status.details.add().Pack(detail)
    return status


def _details(error: KolmError, request_id: str) -> list[Message]:
    info = error_details_pb2.ErrorInfo(
        reason=error.reason, domain=DOMAIN, metadata={**error.metadata, "request_id": request_id}
    )
    details: list[Message] = [info]
    if error.violations:
        details.append(_bad_request(error))
    if error.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(error.retry_after * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if isinstance(error, ResourceExhausted) and error.quota is not None:
        details.append(_quota_failure(error.quota))
    if error.resource is not None:
        resource_type, name = error.resource.type, _clip(error.resource.name)
        details.append(error_details_pb2.ResourceInfo(resource_type=resource_type, resource_name=name))
    return details


def _bad_request(error: KolmError) -> error_details_pb2.BadRequest:
    violation = error_details_pb2.BadRequest.FieldViolation
    return error_details_pb2.BadRequest(
        field_violations=[
            violation(field=_clip(entry.field, _FIELD_BYTES), description=_clip(entry.description, _DESCRIPTION_BYTES))
            for entry in error.violations[:_MOST_VIOLATIONS]
        ]
    )


def _quota_failure(quota: QuotaViolation) -> error_details_pb2.QuotaFailure:
    violation = error_details_pb2.QuotaFailure.Violation(
        subject=_clip(quota.subject), description=_clip(quota.description, _DESCRIPTION_BYTES), quota_metric=quota.name
    )
    return error_details_pb2.QuotaFailure(violations=[violation])


def _clip(text: str, limit: int = _MESSAGE_BYTES) -> str:
    """Text that protobuf can carry (lone surrogates escaped), cut to `limit` bytes."""
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= limit:
        return encoded.decode("utf-8")
    return encoded[: limit - 4].decode("utf-8", "ignore") + " …"
