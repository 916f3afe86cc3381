"""Values of clients from messages that have the same names."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from google.protobuf.message import Message

_Value = TypeVar("_Value")


def plain_value(kind: type[_Value], message: Message, **members: Any) -> _Value:
    """The dataclass `kind` with these members, and with the fields of `message` that have the names of others.

    An `optional` field that is absent becomes None, a repeated one a tuple, a map a dict. Messages and enums inside are
    members: the caller converts them.
    """
    held = message.DESCRIPTOR.fields_by_name
    known: Any = fields(kind)  # type: ignore[arg-type]
    names = [field.name for field in known if field.name in held and field.name not in members]
    return kind(**members, **{name: _plain(message, name) for name in names})


def optional(message: Message, name: str) -> Any:
    """The value of an `optional` field, None if it is absent."""
    return getattr(message, name) if message.HasField(name) else None


def _plain(message: Message, name: str) -> Any:
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.has_presence:
        return optional(message, name)
    value = getattr(message, name)
    if not field.is_repeated:
        return value
    return dict(value) if field.message_type is not None else tuple(value)
