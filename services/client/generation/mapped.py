"""Values of a request that a caller may also write as mappings, as OpenAI's clients do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, NoReturn, TypeVar

_Value = TypeVar("_Value")


def mapped(kind: type[_Value], given: object, path: str) -> _Value:
    """`given` if it is a `kind`, a dataclass, or one with the fields that the mapping has. `path` names it in errors.

    Raises InvalidArgument for another value, an unknown field, a missing one.
    """
    if isinstance(given, kind):
        return given
    known: Any = fields(kind)  # type: ignore[arg-type]
    names = [field.name for field in known]
    if not isinstance(given, Mapping):
        refuse(path, f"expected a {kind.__name__}, or a mapping with {', '.join(names)}, got {type(given).__name__}")
    if unknown := [name for name in given if name not in names]:
        refuse(f"{path}.{unknown[0]}", f"there is no such field; expected some of {', '.join(names)}")
    needed = [field.name for field in known if field.default is MISSING and field.default_factory is MISSING]
    if missing := [name for name in needed if name not in given]:
        refuse(f"{path}.{missing[0]}", "is missing")
    return kind(**given)


def refuse(path: str, problem: str) -> NoReturn:
    """Raises InvalidArgument about the field `path`."""
    from services.client.errors import FieldViolation, InvalidArgument  # gRPC's; a request that is right needs none

    safe = problem.encode("utf-8", "backslashreplace").decode("utf-8")
    raise InvalidArgument(f"{path}: {safe}", reason="INVALID_ARGUMENT", violations=(FieldViolation(path, safe),))
