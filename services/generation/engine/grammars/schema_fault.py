"""Where in a JSON schema the reason is why it does not compile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

_SECONDS = 0.5  # that may be spent on the search
_DEFINED = ("$defs", "definitions")  # looked at first: a fault there shows wherever it is referred to
_BY_NAME = (*_DEFINED, "properties", "patternProperties", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")

Compile = Callable[[Any], str]
"""The error of a schema, empty without one."""

Path = tuple[str | int, ...]


def path_of_fault(schema: Any, error: str, compile: Compile, clock: Callable[[], float] = time.monotonic) -> str:
    """A JSON pointer (RFC 6901) to the deepest place without which `schema` no longer has this `error`; "" is the root.

    Schemas are replaced by `true`, then keywords of the last one are left out, one at a time.
    """
    give_up = clock() + _SECONDS
    path: Path = ()

    def at_fault(candidate: Path, put: Callable[[Any, str | int], None]) -> bool:
        return clock() < give_up and compile(_changed(schema, candidate, put)) != error

    while found := next((p for p in _subschemas(_at(schema, path), path) if at_fault(p, _set_true)), None):
        path = found
    last = _at(schema, path)
    keywords = sorted(last, key="type".__eq__) if isinstance(last, dict) else ()  # without a type, others mean nothing
    path = next((p for p in ((*path, keyword) for keyword in keywords) if at_fault(p, _remove)), path)
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def _subschemas(schema: Any, path: Path) -> Iterator[Path]:
    if not isinstance(schema, dict):
        return
    for keyword, value in sorted(schema.items(), key=lambda item: item[0] not in _DEFINED):
        if keyword in _BY_NAME and isinstance(value, dict):
            yield from ((*path, keyword, name) for name in value)
        elif (keyword in _LISTS or keyword == "items") and isinstance(value, list):
            yield from ((*path, keyword, place) for place in range(len(value)))
        elif isinstance(value, dict):
            yield (*path, keyword)


def _at(schema: Any, path: Path) -> Any:
    for step in path:
        schema = schema[step]
    return schema


def _changed(schema: Any, path: Path, put: Callable[[Any, str | int], None]) -> Any:
    """A copy along `path`, changed at its end."""
    top: Any = dict(schema)
    copy = top
    for step in path[:-1]:
        inner = copy[step]
        copy[step] = inner = list(inner) if isinstance(inner, list) else dict(inner)
        copy = inner
    put(copy, path[-1])
    return top


def _set_true(holder: Any, step: str | int) -> None:
    holder[step] = True


def _remove(holder: Any, step: str | int) -> None:
    del holder[step]
