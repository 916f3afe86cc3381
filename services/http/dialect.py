"""What tells the two endpoints apart: what a body asks for, and how a choice is written, whole and in pieces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from services.client import Chunk, Request
from services.client.completion import Choice
from services.http.fields import CommonFields


class Dialect(Protocol):
    """One endpoint's language: values in, values out. One instance a request, for a piece depends on earlier ones.

    `prefix` is that of answers' ids; `whole_object` and `piece_object` are the member `object` of an answer, and of one
    event of a stream.
    """

    prefix: str
    whole_object: str
    piece_object: str

    @property
    def fields(self) -> CommonFields: ...

    @property
    def names(self) -> Mapping[str, str]:
        """The caller's names of the generation server's fields, where they are not the last part of its path."""

    def request(self) -> Request: ...

    def choice(self, choice: Choice) -> dict[str, Any]:
        """A member of `choices` of a whole answer, without index and finish_reason."""

    def opening(self) -> dict[str, Any] | None:
        """The first piece of each choice, None where it needs none."""

    def piece(self, chunk: Chunk) -> dict[str, Any]:
        """Text that was added."""

    def closing(self) -> dict[str, Any]:
        """The piece that brings finish_reason."""
