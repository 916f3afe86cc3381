"""Requests that are larger than gRPC takes: refused before they are sent, by the field that is at fault."""

from __future__ import annotations

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from services.client.channel import LARGEST_BYTES, check_size
from services.client.errors import InvalidArgument
from services.client.generation.request import Message, Request
from services.client.generation.request_wire import generate_request
from services.runtime.limits import Limits

LONG = "x" * LARGEST_BYTES


def test_the_limit_is_that_of_the_servers() -> None:
    assert Limits().message_bytes == LARGEST_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (Request(prompt=LONG), "request.prompt"),
        (Request(messages=(Message("user", "hello"), Message("user", LONG))), "request.messages.messages"),
        (Request(token_ids=(300,) * 4_500_000), "request.token_ids.ids"),
    ],
)
def test_the_largest_field_is_named(request_: Request, field: str) -> None:
    message = pb.GenerateStreamRequest(request=generate_request(request_, None))
    with pytest.raises(InvalidArgument, match="expected at most 8,388,608 in all") as refused:
        check_size(message)
    assert refused.value.fields == (field,)
    assert refused.value.reason == "MESSAGE_TOO_LARGE"


def test_what_fits_is_sent() -> None:
    message = generate_request(Request(prompt=""), None)
    room = LARGEST_BYTES - message.ByteSize() - 5  # of the field's tag and length
    check_size(generate_request(Request(prompt="x" * room), None))
