"""The seam of an endpoint: the request in its body, and the form of its answer, whole and in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from services.client import Chunk, Completion, Finished, Request
from services.client.generation.completion import Choice, Resolved
from services.http.calls.api_error import ApiError
from services.http.members.fields import CommonFields


class Answering(Protocol):
    """The answer to one request, once the server has resolved it: whole, or as the events of a stream."""

    def whole(self, completion: Completion) -> dict[str, Any]: ...

    def openings(self) -> list[dict[str, Any]]:
        """The first events; the promise is in the first of all."""

    def piece(self, chunk: Chunk) -> list[dict[str, Any]]:
        """Text that was added."""

    def closing(self, finished: Finished) -> list[dict[str, Any]]:
        """The last events of one choice, with its receipt."""

    def endings(self, finished: Sequence[Finished]) -> list[Any]:
        """After the last choice."""

    def failed(self, error: ApiError) -> dict[str, Any]:
        """Instead of all that would follow."""


class Dialect(Protocol):
    """One endpoint's language: values in, values out. One instance a request, for a piece depends on earlier ones."""

    @property
    def fields(self) -> CommonFields: ...

    @property
    def names(self) -> Mapping[str, str]:
        """The caller's names of the generation server's fields, where they are not the last part of its path."""

    def request(self) -> Request: ...

    def answer(self, asked: Request, resolved: Resolved, promise: bytes | None, *, files: bool = False) -> Answering:
        """`files`: each receipt also as a file, whether the body asks for it or not."""


class ChoiceDialect(Dialect, Protocol):
    """One whose answers have choices.

    `prefix` is that of answers' ids; `whole_object` and `piece_object` are the member `object` of an answer, and of one
    event of a stream.
    """

    prefix: str
    whole_object: str
    piece_object: str

    def choice(self, choice: Choice) -> dict[str, Any]:
        """A member of `choices` of a whole answer, without index."""

    def opening(self) -> dict[str, Any] | None:
        """The first piece of each choice, None where it needs none."""

    def pieces(self, chunk: Chunk) -> list[dict[str, Any]]:
        """The addition."""

    def closing(self, finished: Finished) -> list[dict[str, Any]]:
        """The text that was held back, and the piece that brings `finish_reason`."""
