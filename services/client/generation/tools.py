"""Tools that a model may call, as a caller gives them, and its calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from services.client.generation.mapped import mapped, refuse

CHOICES = ("auto", "none", "required")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function: its name, what it does, and the JSON schema of its arguments, written out or as a Python value.

    With `strict` its arguments keep to the schema where the model is free to call or not, too.
    """

    name: str
    description: str = ""
    parameters: str | Mapping[str, Any] | None = None
    strict: bool = False

    @property
    def schema(self) -> str:
        """The schema as JSON, empty without one."""
        if self.parameters is None or isinstance(self.parameters, str):
            return self.parameters or ""
        return json.dumps(self.parameters, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that the model may call, and whether it has to: `choice` is auto, none or required.

    `allowed` names those that it may call, all of them where it is empty. Without `parallel` one answer calls once.
    """

    tools: Sequence[Tool | Mapping[str, Any]]
    choice: str = "auto"
    allowed: Sequence[str] = ()
    parallel: bool = True

    def __post_init__(self) -> None:
        """Raises InvalidArgument for tools of another form, or an unknown choice."""
        given = tuple(mapped(Tool, each, f"tools[{place}]") for place, each in enumerate(self.tools))
        object.__setattr__(self, "tools", given)
        if self.choice not in CHOICES:
            refuse("tools.choice", f"expected one of {', '.join(CHOICES)}, got {self.choice!r}")

    @property
    def given(self) -> tuple[Tool, ...]:
        return cast("tuple[Tool, ...]", self.tools)

    @property
    def names(self) -> list[str]:
        """Of those that may be called."""
        return [tool.name for tool in self.given if not self.allowed or tool.name in self.allowed]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. `arguments` is the JSON of an object, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Called:
    """An output's calls, and the text beside them."""

    content: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class ToolCallSyntax:
    """How calls look in an output's text, as the proto's ToolCallSyntax says."""

    open: str
    middle: str
    between: str | None
    close: str


def call_id(request_id: str, choice: int, place: int) -> str:
    """The same for a call however it is read: it hangs on the request's id."""
    from hashlib import sha256  # OpenSSL's, which most requests do without

    return "call_" + sha256(f"{request_id}/{choice}/{place}".encode()).hexdigest()[:24]
