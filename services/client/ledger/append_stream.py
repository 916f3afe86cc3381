"""The answers of one AppendEntries call, entry by entry."""

from __future__ import annotations

from collections import deque
from typing import Self

from kolm.ledger.v1 import ledger_pb2 as pb
from services.client.channel import Stream
from services.client.errors import KolmError
from services.client.ledger import log_wire
from services.client.ledger.feed import Feed
from services.client.ledger.log import Appended


class AppendStream:
    """Answers in the order of the entries. Leaving its `with` block, or `close`, cancels what is not answered yet.

    Raises KolmError if the stream fails, and after the last answer what the iterator of the entries has raised.
    Iterate from one thread; `close` from any.
    """

    def __init__(self, responses: Stream[pb.AppendEntriesResponse], feed: Feed[pb.NewEntry]) -> None:
        self._responses = responses
        self._feed = feed
        self._answers: deque[Appended | KolmError] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Appended | KolmError:
        while not self._answers:
            response = next(self._responses, None)
            if response is None:
                raise self._feed.failure or StopIteration
            self._answers.extend(log_wire.entry_result(result) for result in response.results)
        return self._answers.popleft()

    def close(self) -> None:
        """Cancel the call. Entries that the server took before are still appended."""
        self._feed.close()
        self._responses.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
