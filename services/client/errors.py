"""Errors of calls to a kolm server, decoded from google.rpc.Status.

KolmError
├── InvalidArgument      a field of the request is wrong; `violations` names it
├── Unauthenticated, PermissionDenied
├── NotFound, AlreadyExists
├── FailedPrecondition   right request, wrong state, which `reason` names (SPEC_DECODE_HALTED, …)
├── ResourceExhausted    the server is busy; try again after `retry_after` seconds
├── Unavailable          no server, or a stopping one; with `retry_after` if it is known
├── DeadlineExceeded, Cancelled
├── DataLoss, Unimplemented
├── ReceiptMismatch      the answer came with a receipt that is not about it
└── Internal             everything else; `request_id` finds it in the server's log
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

_TOO_LARGE = re.compile(r"SERVER: Received message larger than max \((\d{1,19}) vs\. (\d{1,19})\)")
"""gRPC's refusal of a request, as RESOURCE_EXHAUSTED, which is otherwise for calls to try again later."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One wrong field: its path as in the proto, and the problem."""

    field: str
    description: str


class KolmError(Exception):
    """Root. `reason` is stable and UPPER_SNAKE, by default the class's name; `message` is for people; `request_id`
    finds the call in the log.

    `resource` is the type of the resource (`model`, `adapter`), empty if the server names none.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        violations: tuple[FieldViolation, ...] = (),
        retry_after: float | None = None,
        request_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        resource: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or re.sub("(?<!^)(?=[A-Z])", "_", type(self).__name__).upper()
        self.violations = violations
        self.retry_after = retry_after
        self.request_id = request_id
        self.metadata = dict(metadata or {})
        self.resource = resource

    @property
    def fields(self) -> tuple[str, ...]:
        """The paths of the wrong fields."""
        return tuple(violation.field for violation in self.violations)


class InvalidArgument(KolmError):
    """A field of the request is wrong."""


class ReceiptMismatch(KolmError):
    """A signed receipt does not match the request or the answer. Keep it, with both."""


class Unauthenticated(KolmError):
    """Missing or invalid credentials."""


class PermissionDenied(KolmError):
    """The caller may not do this."""


class NotFound(KolmError):
    """The resource that the request names does not exist."""


class AlreadyExists(KolmError):
    """The name belongs to another resource."""


class FailedPrecondition(KolmError):
    """Right request, wrong state."""


class ResourceExhausted(KolmError):
    """A queue is full, or a quota is used up."""


class Unavailable(KolmError):
    """No server, or a stopping one."""


class DeadlineExceeded(KolmError):
    """The timeout of the call has passed."""


class Cancelled(KolmError):
    """The call was cancelled, by its stream's `close` or by a stopping server."""


class DataLoss(KolmError):
    """The server found that stored bytes have changed."""


class Unimplemented(KolmError):
    """This server cannot do that."""


class Internal(KolmError):
    """The server has a bug, or is not a kolm server."""


_BY_CODE: dict[grpc.StatusCode, type[KolmError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgument,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.ABORTED: FailedPrecondition,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.DATA_LOSS: DataLoss,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
}


@contextmanager
def decoded_errors() -> Iterator[None]:
    """Turns every grpc.RpcError raised inside into a KolmError."""
    try:
        yield
    except grpc.RpcError as error:
        raise decode_error(error) from None


def decode_error(error: grpc.RpcError) -> KolmError:
    """The KolmError of a failed call; without rich details if the answer has none."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return Internal(str(error))
    kind = _BY_CODE.get(error.code(), Internal)
    try:
        status = rpc_status.from_call(error)
    except (ValueError, DecodeError):  # the rich status contradicts the plain one, which counts, or is none
        status = None
    if status is None:
        if too_large := _TOO_LARGE.search(error.details() or ""):
            size, most = map(int, too_large.groups())
            problem = f"the request has {size:,} bytes; expected at most {most:,}, the server's --max-message"
            return InvalidArgument(problem, reason="MESSAGE_TOO_LARGE")
        if kind is Internal:  # kolm's servers send details: a proxy has lost its server
            kind = Unavailable
        return kind(error.details() or error.code().name.lower().replace("_", " "), reason=error.code().name)
    return kind(status.message, **_details(status))


def decode_status(status: Status) -> KolmError:
    """The KolmError of a google.rpc.Status that came inside a response."""
    code = next((each for each in grpc.StatusCode if each.value[0] == status.code), grpc.StatusCode.UNKNOWN)
    return _BY_CODE.get(code, Internal)(status.message, **_details(status))


def _details(status: Status) -> dict[str, Any]:
    found: dict[str, Any] = {}
    info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    retry, resource = error_details_pb2.RetryInfo(), error_details_pb2.ResourceInfo()
    for detail in status.details:
        if _unpacked(detail, info):
            metadata = dict(info.metadata)
            found |= {"reason": info.reason, "request_id": metadata.pop("request_id", None), "metadata": metadata}
        elif _unpacked(detail, request):
            violations = request.field_violations
            found["violations"] = tuple(FieldViolation(each.field, each.description) for each in violations)
        elif _unpacked(detail, retry):
            found["retry_after"] = retry.retry_delay.ToNanoseconds() / 1e9
        elif _unpacked(detail, resource):
            found["resource"] = resource.resource_type
    return found


def _unpacked(detail: AnyMessage, message: Message) -> bool:
    """Whether `message` has the content of `detail` now; bytes that are no message have none."""
    try:
        return detail.Unpack(message)
    except DecodeError:
        return False
