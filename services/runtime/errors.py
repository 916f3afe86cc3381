"""The errors that services raise to their callers. Each becomes a google.rpc.Status (AIP-193): ErrorInfo always,
other details if there are any.

    KolmError
    ├── InvalidArgument      a field of the request is wrong; names it
    ├── Unauthenticated      no or bad credentials
    ├── PermissionDenied     the caller may not do this
    ├── NotFound             a named resource does not exist
    ├── AlreadyExists        the name belongs to another resource
    ├── FailedPrecondition   right request, wrong state
    ├── ResourceExhausted    a queue or quota is full; has a time for the next attempt
    ├── Unavailable          a part cannot be reached now; has a time for the next attempt
    ├── DeadlineExceeded     the given time was not enough
    ├── Aborted              the server ended the call
    ├── DataLoss             stored bytes have changed
    ├── Unimplemented        this server does not support the request
    └── Internal             a bug; contains only the request's id

`reason` is UPPER_SNAKE and stable: clients branch on it. The message names the problem, the expected value and the
remedy, and never contains a secret or a traceback.
"""

from __future__ import annotations

from collections.abc import Mapping
from traceback import clear_frames
from typing import TypeVar

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

_Error = TypeVar("_Error", bound=BaseException)


# Trailers share gRPC's 8 KiB metadata limit, and a status past it would reach the caller as another error. These
# limits, in UTF-8 bytes, stay below it with every byte of the message percent-encoded and the details in base64.
_MESSAGE_BYTES = 512
_FIELD_BYTES = 128
_DESCRIPTION_BYTES = 256

DOMAIN = "kolm"

DETAILS_KEY = "grpc-status-details-bin"
"""The trailing metadata key under which gRPC carries a serialised google.rpc.Status."""


def _clip(text: str, limit: int = _MESSAGE_BYTES) -> str:
    """Text that protobuf can carry (lone surrogates escaped), cut to `limit` bytes."""
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= limit:
        return encoded.decode("utf-8")
    return encoded[: limit - 4].decode("utf-8", "ignore") + " …"


class KolmError(Exception):
    """Root. A subclass has the status code, whose name is the default `reason`. `details` are the status's details
    besides ErrorInfo and RetryInfo.
    """

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN

    def __init__(
        self,
        message: str,
        *details: Message,
        reason: str | None = None,
        retry_after: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.reason = reason or self.code.name
        self.retry_after = retry_after
        self.metadata = dict(metadata or {})


def without_frames(error: _Error) -> _Error:
    """The error without its traceback, which would keep the frames and their requests in memory until the garbage
    collector finds them: megabytes for each refusal. The frames are cleared too, because others, such as contextlib,
    may hold the traceback.
    """
    clear_frames(error.__traceback__)
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


class InvalidArgument(KolmError):
    """A field is wrong, named by its path as in the proto (`spec_decode.method`, `messages[2].role`):
    `InvalidArgument("top_p", "expected above 0 and at most 1, got 1.5")`.
    """

    code = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(
        self, field: str, description: str, *, reason: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> None:
        wrong = {"field": _clip(field, _FIELD_BYTES), "description": _clip(description, _DESCRIPTION_BYTES)}
        detail = error_details_pb2.BadRequest(field_violations=[error_details_pb2.BadRequest.FieldViolation(**wrong)])
        super().__init__(f"{field}: {description}", detail, reason=reason, metadata=metadata)
        self.field = field


class Unauthenticated(KolmError):
    """No credentials, or bad ones."""

    code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDenied(KolmError):
    """The caller is known, and may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED


class NotFound(KolmError):
    """No resource of this type has this name."""

    code = grpc.StatusCode.NOT_FOUND

    def __init__(self, type: str, name: str, hint: str = "", *, reason: str | None = None) -> None:
        message = f"no {type} {name!r}" + (f"; {hint}" if hint else "")
        super().__init__(message, _resource(type, name), reason=reason)


class AlreadyExists(KolmError):
    """The name is taken by something else; the same call cannot succeed."""

    code = grpc.StatusCode.ALREADY_EXISTS

    def __init__(self, type: str, name: str, message: str) -> None:
        super().__init__(message, _resource(type, name), reason="CONFLICT")


def _resource(type: str, name: str) -> error_details_pb2.ResourceInfo:
    """The resource that an error is about: its type (`receipt`, `model`) and the name that the caller used."""
    return error_details_pb2.ResourceInfo(resource_type=type, resource_name=_clip(name))


class FailedPrecondition(KolmError):
    """The request is right and the state is wrong; a retry helps only after a change of the state."""

    code = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, message: str, *, reason: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message, reason=reason, metadata=metadata)


class ResourceExhausted(KolmError):
    """A queue or a quota is full. `retry_after` in seconds. `quota`: its name in the settings (`tokens`), whose it is
    (`tenant:acme`), and how much it is.
    """

    code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(
        self, message: str, *, retry_after: float, reason: str = "QUEUE_FULL", quota: tuple[str, str, str] | None = None
    ) -> None:
        if quota is None:
            super().__init__(message, reason=reason, retry_after=retry_after)
            return
        name, subject, description = quota
        detail = error_details_pb2.QuotaFailure()
        detail.violations.add(
            subject=_clip(subject), description=_clip(description, _DESCRIPTION_BYTES), quota_metric=name
        )
        super().__init__(message, detail, reason=reason, retry_after=retry_after, metadata={"quota": name})


class Unavailable(KolmError):
    """A part cannot be reached now; nothing was done. `retry_after` in seconds."""

    code = grpc.StatusCode.UNAVAILABLE

    def __init__(self, message: str, *, retry_after: float = 1.0, reason: str | None = None) -> None:
        super().__init__(message, reason=reason, retry_after=retry_after)


class DeadlineExceeded(KolmError):
    """The caller's deadline passed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Aborted(KolmError):
    """The server ended a call, whose effects so far remain."""

    code = grpc.StatusCode.ABORTED


class DataLoss(KolmError):
    """Stored bytes have changed; a retry does not help, an operator has to look."""

    code = grpc.StatusCode.DATA_LOSS


class Unimplemented(KolmError):
    """This server cannot do that."""

    code = grpc.StatusCode.UNIMPLEMENTED


class Internal(KolmError):
    """A bug. The log has the traceback under the request's id; the caller gets the id only."""

    code = grpc.StatusCode.INTERNAL

    def __init__(self) -> None:
        super().__init__("internal error; the server's log has it under this request's id")


def to_status(error: KolmError, request_id: str) -> status_pb2.Status:
    """The status a caller receives; `request_id` goes into ErrorInfo's metadata."""
    number, _name = error.code.value
    status = status_pb2.Status(code=number, message=_clip(error.message))
    about = {**error.metadata, "request_id": request_id}
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=about))
    if error.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(error.retry_after * 1e9))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    for detail in error.details:
        status.details.add().Pack(detail)
    return status
