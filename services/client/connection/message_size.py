"""Refuses messages that are too large for a server: gRPC there could not say which field is at fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from services.client.errors import FieldViolation, InvalidArgument

LARGEST_BYTES = 8 * 1024 * 1024
"""The largest message that a kolm server takes."""


def check_size(request: Message) -> None:
    """Raises InvalidArgument, naming the largest field, for a request over `LARGEST_BYTES`."""
    size = request.ByteSize()
    if size <= LARGEST_BYTES:
        return
    field = _largest(request)
    what = f"the request has {size:,} bytes, most of them here; expected at most {LARGEST_BYTES:,} in all"
    raise InvalidArgument(f"{field}: {what}", reason="MESSAGE_TOO_LARGE", violations=(FieldViolation(field, what),))


def _largest(message: Message) -> str:
    """The path of the field with the most bytes, as deep as a single field has most of them."""
    sizes = {field.name: (_bytes(value), value) for field, value in message.ListFields()}
    name = max(sizes, key=lambda each: sizes[each][0])
    value = sizes[name][1]
    return f"{name}.{_largest(value)}" if isinstance(value, Message) else name


def _bytes(value: Any) -> int:
    """Roughly its bytes; items of one size are not counted one by one."""
    if isinstance(value, Message):
        return value.ByteSize()
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, int | float):
        return 8
    if isinstance(value, Mapping) or isinstance(value[0], int | float):
        return 16 * len(value)
    return sum(map(_bytes, value))
