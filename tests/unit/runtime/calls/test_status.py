from __future__ import annotations

import gc
import weakref
from types import TracebackType

import grpc
from google.rpc import error_details_pb2
from hypothesis import given
from hypothesis import strategies as st

from services.runtime.errors import (
    FieldViolation,
    InvalidArgument,
    KolmError,
    NotFound,
    ResourceExhausted,
    to_status,
    without_frames,
)


def _details(error: KolmError, *kinds: type) -> list:  # type: ignore[type-arg]
    found = [kind() for kind in kinds]
    status = to_status(error, "r1")
    assert len(status.details) == len(kinds)
    assert all(detail.Unpack(kind) for detail, kind in zip(status.details, found, strict=True))
    return found


def test_a_wrong_field_is_named_by_its_path() -> None:
    error = InvalidArgument("spec_decode.k", "expected 1 to 16, got 0")
    info, request = _details(error, error_details_pb2.ErrorInfo, error_details_pb2.BadRequest)
    assert (info.domain, info.reason, info.metadata["request_id"]) == ("kolm", "INVALID_ARGUMENT", "r1")
    assert [(each.field, each.description) for each in request.field_violations] == [
        ("spec_decode.k", "expected 1 to 16, got 0")
    ]
    assert to_status(error, "r1").code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


def test_a_full_queue_says_when_to_come_back() -> None:
    error = ResourceExhausted("the queue is full", retry_after=0.25)
    _, retry = _details(error, error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToMilliseconds() == 250


def test_a_missing_resource_is_named() -> None:
    _, resource = _details(NotFound("receipt", "abc"), error_details_pb2.ErrorInfo, error_details_pb2.ResourceInfo)
    assert (resource.resource_type, resource.resource_name) == ("receipt", "abc")


@given(st.text(st.characters(), max_size=3000), st.integers(1, 40))
def test_any_text_and_any_number_of_violations_fit_into_grpc_metadata(text: str, count: int) -> None:
    violations = tuple(FieldViolation(text, text) for _ in range(count))
    status = to_status(InvalidArgument.of(violations), "r" * 128)
    percent_encoded = 3 * len(status.message.encode())
    assert status.ByteSize() * 4 / 3 + percent_encoded < 8000


class Request:
    """A megabyte."""


def test_a_kept_error_keeps_no_request_also_where_somebody_else_holds_its_traceback() -> None:
    refused: list[weakref.ref[Request]] = []

    def refuse() -> None:
        request = Request()
        refused.append(weakref.ref(request))
        raise InvalidArgument("request", "expected less")

    held: TracebackType | None = None
    gc.disable()
    try:
        try:
            refuse()
        except InvalidArgument as error:
            held = error.__traceback__
            without_frames(error)
        assert refused[0]() is None
        assert held is not None
    finally:
        gc.enable()
