"""The sequencer: it orders the entries of many callers by a bounded queue, one thread, and one transaction for the
queue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from ledger.documents.content import Content
from ledger.errors import (
    Backpressure,
    LedgerError,
    NotWritten,
    SignerUnavailable,
    Stopped,
    StoreError,
    StoreLocked,
    StoreReplaced,
)
from ledger.keys.signer import Signer
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.admission import Admitted, admit
from ledger.log.continuity import Guard
from ledger.log.recovery import recover
from ledger.log.store import EntryStore
from ledger.log.tree_head import TreeHeadBoard
from ledger.log.writer import Appended, LogWriter, OnWritten, ignore_times

_SHORTEST_RETRY_SECONDS = 0.05
_LONGEST_RETRY_SECONDS = 5.0

_log = logging.getLogger(__name__)


Answer = Appended | LedgerError
"""The index and proof of an envelope, or the reason why it has none."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Envelopes of one call, and the callback for their answers."""

    admitted: Sequence[Admitted]
    answer: Callable[[list[Answer]], None]


class Sequencer:
    """Appends envelopes to a store in the order of arrival; all waiting envelopes go into one transaction.

    `board` posts every head once it is signed and recorded. Callers may use any thread. When a database fails (a full
    disk, a restart), the batch's callers get NotWritten, and the sequencer recovers as at start before it writes again;
    `takes_entries` is False until a batch or a probe is written. If the database contradicts signed heads, or another
    process has taken the log over, it stops for good, and every caller gets Stopped.
    """

    def __init__(
        self,
        store: EntryStore,
        key: Signer,
        trusted: TrustedKeys,
        origin: str,
        *,
        guard: Guard,
        queue_size: int = 4096,
        batch_size: int = 256,
        clock: Callable[[], float] = time.monotonic,
        probe_seconds: float = 1.0,
        on_written: OnWritten = ignore_times,
        ever_trusted: TrustedKeys | None = None,
    ) -> None:
        """Recover, then start the writing thread. Raises the errors of `recovery.recover`, which gets `ever_trusted`:
        `trusted` and the replaced keys. None if `trusted` has these too.

        While no entries come, every `probe_seconds` a check asks whether the databases are still there and locked by
        this process or, after a failure, whether they can be written again. `on_written` is called after each batch, on
        the writing thread.
        """
        self._store = store
        self._guard = guard
        self._recover = partial(recover, store, key, ever_trusted or trusted, origin, guard, on_written)
        self._trusted = trusted
        self._queue_size = queue_size
        self._batch_size = batch_size
        self._clock = clock
        self._probe_seconds = probe_seconds
        self._batch_seconds = 0.0
        self._queue: deque[_Waiting] = deque()
        self._queued = 0
        self._changed = threading.Condition()
        self._closing = False
        self._failure: LedgerError | None = None
        self._failing = False
        self._writer: LogWriter | None = self._recover()
        self.board = TreeHeadBoard(self._writer.head)
        self._thread = threading.Thread(target=self._run, name="ledger-sequencer", daemon=True)
        self._thread.start()

    def append(self, envelope: bytes, content: Content | None = None) -> Future[Appended]:
        """Queue a DSSE envelope; the future answers once it is durable, and cannot be cancelled.

        Checked here, in the caller's thread: raises FormatError, SignatureError, Backpressure, Stopped. Checked in
        order, by the future: Conflict (another receipt has this id), FormatError (a reference does not hold),
        SignatureError (an entry has replaced the key), StoreError (send it again: an entry that was written keeps its
        index). An envelope that the log holds gets its
        old index, and its content is ignored.
        """
        return self.submit(self.admit(envelope, content))

    def admit(self, envelope: bytes, content: Content | None = None) -> Admitted:
        """The first half of `append`: the checks in the caller's thread. Raises FormatError, SignatureError."""
        return admit(envelope, content, self.trusted)

    @property
    def trusted(self) -> TrustedKeys:
        """The keys that are trusted now: the same object until they change."""
        return self._trusted.now()

    def submit(self, admitted: Admitted) -> Future[Appended]:
        """The second half: queue a checked envelope. Never blocks. Raises Backpressure, Stopped."""
        answer: Future[Appended] = Future()
        answer.set_running_or_notify_cancel()
        self._put(_Waiting((admitted,), partial(_answer_one, answer)))
        return answer

    def submit_all(self, admitted: Sequence[Admitted]) -> Future[list[Answer]]:
        """Queue up to `most_together` envelopes, in order; the future has an answer for each. One future costs less
        than one for each envelope. Raises Backpressure if the queue cannot take all of them, Stopped.
        """
        answer: Future[list[Answer]] = Future()
        answer.set_running_or_notify_cancel()
        self._put(_Waiting(admitted, answer.set_result))
        return answer

    @property
    def most_together(self) -> int:
        """The largest number of envelopes that `submit_all` takes: they share a transaction."""
        return min(self._batch_size, self._queue_size)

    def _put(self, waiting: _Waiting) -> None:
        with self._changed:
            if self._closing or self._failure is not None:
                raise self._stopped()
            if self._queued + len(waiting.admitted) > self._queue_size:
                raise Backpressure(self._retry_after())
            self._queue.append(waiting)
            self._queued += len(waiting.admitted)
            self._changed.notify()

    def close(self) -> None:
        """Take no more, write what is queued, stop. Closing twice changes nothing. The store stays open."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    @property
    def failure(self) -> LedgerError | None:
        """The reason why the sequencer stopped by itself; None if it did not."""
        return self._failure

    @property
    def queued(self) -> int:
        """Entries that wait to be written."""
        return self._queued

    @property
    def takes_entries(self) -> bool:
        """Whether the last write, a batch or a probe, succeeded. False for good once the sequencer has stopped."""
        return self._failure is None and not self._failing

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            if not batch:
                self._probe() if self._failing else self._check_held()
                continue
            started = self._clock()
            self._write(batch)
            self._batch_seconds = self._clock() - started

    def _take(self) -> list[_Waiting] | None:
        """The waiting envelopes, up to the batch size. Empty if none came for `probe_seconds`; None at the end, after
        the last batch or a failure.
        """
        with self._changed:
            came = self._changed.wait_for(lambda: self._queue or self._closing or self._failure, self._probe_seconds)
            if self._failure is not None or (came and not self._queue):
                return None
            batch, room = list[_Waiting](), self._batch_size
            while self._queue and len(self._queue[0].admitted) <= room:
                batch.append(self._queue.popleft())
                room -= len(batch[-1].admitted)
            self._queued -= self._batch_size - room
            return batch

    def _check_held(self) -> None:
        """Notice a missing file or a lost lock before the next entry comes."""
        try:
            self._store.check_held()
            self._guard.check_held()
        except Exception as error:
            self._writer = None
            reported = _reported(error)
            if _is_final(reported):
                self._stop_on(reported)
            else:
                self._mark_failing(reported, error)

    def _probe(self) -> None:
        """Write a probe: no caller sends entries while `takes_entries` is False."""
        try:
            self._recovered()
            self._store.probe()
        except Exception as error:
            self._writer = None
            if not isinstance(error, LedgerError) or _is_final(error):
                self._stop_on(_reported(error))
        else:
            self._mark_working()

    def _write(self, batch: Sequence[_Waiting]) -> None:
        try:
            writer = self._recovered()
            before = writer.head
            trusted = self.trusted
            checked = [_rechecked(admitted, trusted) for waiting in batch for admitted in waiting.admitted]
            written = iter(writer.write([each for each in checked if isinstance(each, Admitted)]))
            answers = (next(written) if isinstance(each, Admitted) else each for each in checked)
        except Exception as error:
            self._answer_failed(batch, error)
            return
        if writer.head is not before:  # a batch of known entries writes nothing, and proves nothing about the database
            self._mark_working()
        self.board.post(writer.head)
        for waiting in batch:
            waiting.answer(list(islice(answers, len(waiting.admitted))))

    def _recovered(self) -> LogWriter:
        """The writer; after a failure a new one, recovered from the database."""
        if self._writer is None:
            self._writer = self._recover()
            self.board.post(self._writer.head)
        return self._writer

    def _answer_failed(self, batch: Sequence[_Waiting], error: Exception) -> None:
        """Recover as after a restart, or stop; then answer the batch, so that every caller gets an answer."""
        self._writer = None
        answer = reported = _reported(error)
        if _is_final(reported):
            self._stop_on(reported)
        else:
            answer = NotWritten(str(reported))
            self._mark_failing(reported, error)
            try:
                self._recovered()
            except Exception as again:
                if not isinstance(again, LedgerError) or _is_final(again):
                    self._stop_on(again if isinstance(again, LedgerError) else reported)
        for waiting in batch:
            waiting.answer([answer] * len(waiting.admitted))

    def _mark_failing(self, reported: LedgerError, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            bug = None if isinstance(error, LedgerError) else error
            _log.error("cannot write entries until the database works again: %s", reported, exc_info=bug)

    def _mark_working(self) -> None:
        if self._failing:
            self._failing = False
            _log.warning("writing entries again")

    def _stop_on(self, failure: LedgerError) -> None:
        _log.critical("stopping the ledger for good: %s", failure)
        with self._changed:
            self._failure = failure
            left, self._queue, self._queued = self._queue, deque(), 0
        for waiting in left:
            waiting.answer([self._stopped()] * len(waiting.admitted))

    def _stopped(self) -> Stopped:
        return Stopped(
            "the ledger is shutting down" if self._failure is None else f"the ledger has stopped: {self._failure}"
        )

    def _retry_after(self) -> float:
        batches = -(-self._queued // self._batch_size)
        return min(max(batches * self._batch_seconds, _SHORTEST_RETRY_SECONDS), _LONGEST_RETRY_SECONDS)


def _rechecked(admitted: Admitted, trusted: TrustedKeys) -> Admitted | LedgerError:
    """Check again if the trusted keys have changed: the keys that are trusted at the time of the append count."""
    if admitted.trusted is trusted:
        return admitted
    try:
        return replace(admit(admitted.envelope, None, trusted), content=admitted.content)
    except LedgerError as error:
        return error


def _answer_one(answer: Future[Appended], answers: list[Answer]) -> None:
    if isinstance(answers[0], LedgerError):
        answer.set_exception(answers[0])
    else:
        answer.set_result(answers[0])


def _reported(error: Exception) -> LedgerError:
    return error if isinstance(error, LedgerError) else StoreError(f"the ledger's writer failed: {error!r}")


def _is_final(error: LedgerError) -> bool:
    """Whether an error stops the sequencer for good: a database that contradicts the log, has another writer or has
    lost a file. A failed database or signing device may work again.
    """
    return isinstance(error, StoreLocked | StoreReplaced) or not isinstance(error, StoreError | SignerUnavailable)
