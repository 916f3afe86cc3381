"""One AppendEntries call: its entries in groups, without waiting for more, and its answers entry by entry."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Self, TypeVar

from google.protobuf.message import Message

from kolm.ledger.v1 import ledger_pb2 as pb
from services.client.channel import Stream
from services.client.errors import KolmError
from services.client.ledger import log_wire
from services.client.ledger.log import Appended

_POLL_SECONDS = 0.2

_Message = TypeVar("_Message", bound=Message)


class Feed(Iterable[list[_Message]]):
    """Groups of messages: each holds those that came while the group before was sent. None waits to be filled.

    A thread of its own reads `messages`, at most two groups ahead of the sending. Iterate it once. A group ends
    with the message that takes it past `most_bytes`.
    """

    def __init__(self, messages: Iterable[_Message], most: int, most_bytes: int) -> None:
        self._messages = messages
        self._most = most
        self._most_bytes = most_bytes
        self._ready: queue.Queue[_Message | None] = queue.Queue(2 * most)
        self._closed = threading.Event()
        self.failure: Exception | None = None
        """The error that `messages` raised; the iteration has ended after all messages before it."""

    def __iter__(self) -> Iterator[list[_Message]]:
        threading.Thread(target=self._read, name="kolm-feed", daemon=True).start()
        last = False
        while not last and (first := self._ready.get()) is not None:
            group, size = [first], first.ByteSize()
            while len(group) < self._most and size < self._most_bytes and not self._ready.empty():
                message = self._ready.get()
                if message is None:
                    last = True
                    break
                group.append(message)
                size += message.ByteSize()
            yield group

    def close(self) -> None:
        """Stop reading. Messages that were read and not sent are dropped."""
        self._closed.set()
        while not self._ready.empty():
            self._ready.get_nowait()
        self._ready.put(None)

    def _read(self) -> None:
        try:
            for message in self._messages:
                if not self._put(message):
                    return
        except Exception as error:
            self.failure = error
        self._put(None)

    def _put(self, message: _Message | None) -> bool:
        """Returns False once the feed is closed, for then nobody makes room."""
        while not self._closed.is_set():
            try:
                self._ready.put(message, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False


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
