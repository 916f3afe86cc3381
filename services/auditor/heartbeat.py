"""The heartbeat of a lease while its receipt is examined."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Self

from services.auditor.audit_error import ScheduleError
from services.auditor.schedule.schedule import Lease, Schedule
from services.runtime.process import Outage

_log = logging.getLogger(__name__)


class Heartbeat:
    """Renews a lease every `seconds` from a thread of its own, for as long as the block runs.

    with Heartbeat(schedule, lease, 20.0):
        finding = examine(…)
    """

    def __init__(self, schedule: Schedule, lease: Lease, seconds: float) -> None:
        self._schedule = schedule
        self._lease = lease
        self._seconds = seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _beat(self) -> None:
        outage = Outage(_log, f"renew the lease on entry {self._lease.receipt_index}", ScheduleError)
        while not self._done.wait(self._seconds):
            with outage:
                if not self._schedule.renew(self._lease):
                    return  # its new holder examines it; we ask once more before anything is written
