"""The monitor at work: one look, or one after another."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ledger.errors import NotFound
from ledger.keys.trusted_keys import TrustedKeys
from ledger.monitor.finding import Finding
from ledger.monitor.judgement import Limits
from ledger.monitor.monitor import Monitor
from services.cli.failures.exits import Away, CommandError, Missing
from services.cli.jobs.monitor.memory import SqliteMonitorMemory
from services.cli.jobs.monitor.promises import read_promises
from services.cli.jobs.monitor.source import LogFiles, opened_log
from services.cli.jobs.monitor.webhook import Webhook
from services.cli.jobs.stop_signals import stop_signals


@dataclass(frozen=True, slots=True)
class Watched:
    """The log that is followed, and how, as in the help of `kolm monitor`."""

    ledger: str
    tiles: str | None
    state: Path
    trusted: TrustedKeys
    limits: Limits
    promises: tuple[Path, ...] = ()
    webhook: str | None = None

    @property
    def place(self) -> str:
        return self.tiles or self.ledger


@dataclass(frozen=True, slots=True)
class Look:
    """All that was wrong after a look at `size` entries. `new` is what the webhook had not been told before. `away` is
    why the log could not be read, `undelivered` why the webhook did not take a finding.
    """

    size: int
    findings: tuple[Finding, ...]
    new: tuple[Finding, ...]
    away: CommandError | None
    undelivered: str | None


class Watching:
    """A log that is being followed."""

    def __init__(self, watched: Watched, files: LogFiles, memory: SqliteMonitorMemory) -> None:
        self._watched = watched
        self._files = files
        self._memory = memory
        self._monitor = Monitor(memory, watched.trusted, watched.limits)
        self._webhook = None if watched.webhook is None else Webhook(watched.webhook, watched.place)

    def look(self) -> Look:
        """Read what is new, judge, and tell the webhook, if there is one, what it has not been told.

        Raises UsageError for a promise that cannot be read, StoreError for the monitor's own state.
        """
        now, away = datetime.now(UTC), None
        promised = read_promises(self._watched.promises)
        try:
            self._monitor.look(self._files, now)
        except (Away, NotFound) as error:
            away = error if isinstance(error, Away) else Missing(str(error))
        findings = tuple(self._monitor.findings(promised, now))
        told = self._memory.told()
        new = tuple(each for each in findings if each.key not in told)
        undelivered = self._tell(new, now, told & {each.key for each in findings})
        return Look(self._monitor.size, findings, new, away, undelivered)

    def _tell(self, new: tuple[Finding, ...], now: datetime, told: set[str]) -> str | None:
        """A finding that the webhook refuses is sent again after the next look, with those after it; no look waits."""
        if self._webhook is None:
            return None
        problem = None
        for finding in new:
            problem = self._webhook.tell(finding, self._monitor.size, now)
            if problem is not None:
                break
            told.add(finding.key)
        self._memory.tell(sorted(told))
        return problem


@contextmanager
def watching(watched: Watched) -> Iterator[Watching]:
    """Raises UsageError, StoreError."""
    with (
        closing(SqliteMonitorMemory(watched.state)) as memory,
        opened_log(watched.ledger, watched.tiles, witnessed=watched.limits.witnessed) as files,
    ):
        yield Watching(watched, files, memory)


class _Stopped(BaseException):
    """SIGTERM came."""


def follow(work: Watching, seconds: float | None, shown: Callable[[Look], bool]) -> bool:
    """Look again and again, `seconds` apart, until `shown` says that it is enough; only once without seconds. SIGTERM
    ends it wherever it is but while it shows, for the next look goes on where this one was; returns whether the last
    look went to its end.
    """

    came, showing = False, False

    def stop(_: int) -> None:
        nonlocal came
        came = True
        if not showing:
            raise _Stopped

    with suppress(_Stopped), stop_signals(stop, (signal.SIGTERM,)):
        while True:
            look = work.look()
            showing = True
            enough = shown(look)
            showing = False
            if enough or came or seconds is None:
                return True
            time.sleep(seconds)
    return False
