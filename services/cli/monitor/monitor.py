"""`kolm monitor`: follows a log and reports faults. Over tiles the package kolm-verify is enough."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from typer import Option

from ledger.bundle.tiles import TileFiles, TileFolder
from ledger.encoding.text_forms import timestamp
from ledger.errors import NotFound, StoreError
from ledger.monitor.finding import Finding
from ledger.monitor.judgement import Limits, Promised
from ledger.monitor.memory import MonitorMemory
from ledger.monitor.monitor import Monitor
from ledger.witness.tlog_policy import Policy
from services.cli.frame import exits, options
from services.cli.frame.exits import CommandError, Unreachable, UsageError
from services.cli.frame.options import ledger_at
from services.cli.frame.output import json_text
from services.cli.frame.process import print_error, printable, reader_may_leave, stop_signals
from services.cli.frame.values import age, read_bytes
from services.cli.verify.sources import TrustSources, own_trust
from services.cli.verify.tile_sources import HttpTiles, is_url
from services.runtime.http.http_call import on_own_thread, post

_MOST_BYTES = 64 * 1024

_POST_SECONDS = 10.0
_PAUSES = (0.0, 1.0, 4.0)
"""Pauses before each attempt, in seconds."""


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Limits beyond which a log is wrong."""

    max_age: Annotated[
        str | None,
        Option(
            metavar="DURATION", help="Report a log that is older by its witnesses, or else unchanged for this time."
        ),
    ] = None
    max_unreplayable: Annotated[
        int, Option(min=0, metavar="N", help="Accept this many receipts that could not be replayed.")
    ] = 0
    since: Annotated[
        int, Option(min=0, max=options.MOST_ENTRIES, metavar="ENTRY", help="Report findings from this entry on.")
    ] = 0
    lag: Annotated[
        str, Option(metavar="DURATION", help="Delay of the files that is allowed; deadlines are extended by it.")
    ] = "0s"

    def limits(self, policy: Policy | None, origin: str | None) -> Limits:
        """Raises UsageError."""
        max_age = None if self.max_age is None else age("--max-age", self.max_age)
        lag = age("--lag", self.lag)
        return Limits(policy, origin, max_age, self.max_unreplayable, self.since, lag)


LIMITS = LimitOptions()


def monitor(
    tiles: Annotated[
        str | None,
        Option("--tiles", metavar="URL|DIR", help="Follow the log at a URL or in a folder (C2SP tlog-tiles)."),
    ] = None,
    ledger: options.Ledger = options.LEDGER,
    state: Annotated[
        Path | None, Option(metavar="FILE", help="The monitor's state. Default: <data-dir>/monitor.sqlite3.")
    ] = None,
    promise: Annotated[
        list[Path] | None,
        Option(metavar="FILE|DIR", help="A promise that the log must keep, or a folder of them (*.json)."),
    ] = None,
    limits: LimitOptions = LIMITS,
    policy: Annotated[
        Path | None, Option(help="The expected log and witnesses (C2SP tlog-policy). Default: <trusted>/policy.")
    ] = None,
    origin: options.Origin = None,
    once: Annotated[bool, Option("--once", help="Poll once, for cron.")] = False,
    every: Annotated[str, Option(metavar="DURATION", help="Poll interval.")] = "10s",
    webhook: Annotated[
        str | None,
        Option(
            envvar="KOLM_MONITOR_WEBHOOK",
            metavar="URL",
            help="POST each new finding to this URL as JSON, and continue.",
        ),
    ] = None,
    paths: options.Paths = options.PATHS,
    json: options.Json = False,
) -> None:
    """Follow a log: each checkpoint, entry, owed replay and promise. Exit code 3, and a line, at a fault."""
    trust = own_trust(TrustSources(paths.trusted, policy))
    allowed, place = limits.limits(trust.policy, origin), tiles or ledger
    seconds = age("--every", every).total_seconds()
    report = PollReport(place, as_json=json, once=once, goes_on=webhook is not None and not once)
    with (
        closing(MonitorMemory(state or paths.data_dir / "monitor.sqlite3")) as memory,
        followed_log(ledger, tiles, witnessed=allowed.witnessed) as files,
    ):
        told = None if webhook is None else Webhook(webhook, place)
        work = Watching(files, memory, Monitor(memory, trust.keys, allowed), tuple(promise or ()), told)
        ended = follow(work, None if once else seconds, report.show)
    if once and not ended:
        raise typer.Exit(exits.TERMINATED)
    if report.wrong or report.away is None:
        raise typer.Exit(exits.VERIFICATION_FAILED if report.wrong else exits.OK)
    if once:
        raise report.away
    raise typer.Exit(report.away.exit_code)  # its line was printed when it began


@dataclass(frozen=True, slots=True)
class Poll:
    """The findings after a poll at `size` entries. `new` are findings that the webhook has not had. `away` is why the
    log could not be read, `undelivered` why the webhook did not take a finding.
    """

    size: int
    findings: tuple[Finding, ...]
    new: tuple[Finding, ...]
    away: CommandError | None
    undelivered: str | None

    @property
    def wrong(self) -> bool:
        """Whether there are findings other than warnings."""
        return any(not each.is_warning for each in self.findings)

    def document(self) -> dict[str, Any]:
        """All findings; `ok` if all are warnings and the log could be read."""
        return {
            "ok": not self.wrong and self.away is None,
            "size": self.size,
            "away": None if self.away is None else self.away.message,
            "findings": [each.to_document() for each in self.findings],
        }


@dataclass(frozen=True, slots=True)
class Watching:
    """A log that is being followed."""

    files: LogFiles
    memory: MonitorMemory
    monitor: Monitor
    promises: tuple[Path, ...]
    webhook: Webhook | None

    def poll(self) -> Poll:
        """Read new entries, judge, and send new findings to the webhook, if there is one.

        Raises UsageError for a promise that cannot be read, StoreError for the monitor's own state.
        """
        now, away = datetime.now(UTC), None
        promised = read_promises(self.promises)
        try:
            self.monitor.poll(self.files, now)
        except (Unreachable, NotFound) as error:
            away = error if isinstance(error, Unreachable) else exits.NotFound(str(error))
        findings = tuple(self.monitor.findings(promised, now))
        told = self.memory.reported()
        new = tuple(each for each in findings if each.key not in told)
        undelivered = self._send(new, now, told & {each.key for each in findings})
        return Poll(self.monitor.size, findings, new, away, undelivered)

    def _send(self, new: tuple[Finding, ...], now: datetime, told: set[str]) -> str | None:
        """Send findings until the webhook refuses one; the rest are sent after the next poll, which does not wait."""
        if self.webhook is None:
            return None
        problem = None
        for finding in new:
            problem = self.webhook.send(finding, self.monitor.size, now)
            if problem is not None:
                break
            told.add(finding.key)
        self.memory.keep_reported(sorted(told))
        return problem


class _Stopped(BaseException):
    """SIGTERM arrived."""


def follow(work: Watching, seconds: float | None, shown: Callable[[Poll], bool]) -> bool:
    """Poll every `seconds` until `shown` returns True, or once if `seconds` is None. SIGTERM ends it, also in the
    middle of a poll, which the next start repeats; a poll that is being shown is shown first. Returns whether the last
    poll was complete.
    """
    came, showing = False, False

    def stop(_: int) -> None:
        nonlocal came
        came = True
        if not showing:
            raise _Stopped

    with suppress(_Stopped), stop_signals(stop, (signal.SIGTERM,)):
        while True:
            poll = work.poll()
            showing = True
            enough = shown(poll)
            showing = False
            if enough or came or seconds is None:
                return True
            time.sleep(seconds)
    return False


class PollReport:
    """Shows polls, each finding once. `goes_on`: a finding does not end the monitor, because a webhook gets it."""

    def __init__(self, place: str, *, as_json: bool, once: bool, goes_on: bool) -> None:
        self._place = place
        self._as_json = as_json
        self._once = once
        self._goes_on = goes_on
        self._size: int | None = None
        self._shown: set[str] = set()
        """Keys of findings that were shown: as lines all warnings, as JSON the findings of the last poll."""
        self.wrong = False
        """Whether the last poll had findings other than warnings."""
        self.away: CommandError | None = None
        """The error of the last poll that could not read the log."""

    def show(self, poll: Poll) -> bool:
        """Returns whether this was the last poll, also because stdout has no reader any more."""
        has_reader = False
        with reader_may_leave(sys.stdout):
            if self._as_json:
                self._show_json(poll)
            else:
                self._show_lines(poll)
            has_reader = True
        self.wrong, self.away, self._size = poll.wrong, poll.away, poll.size
        return not has_reader or (self.wrong and not self._goes_on)

    def _show_json(self, poll: Poll) -> None:
        keys = {each.key for each in poll.findings}
        if keys - self._shown or poll.size != self._size or (poll.away is None) != (self.away is None):
            print(json_text(poll.document()), flush=True)
        self._shown = keys

    def _show_lines(self, poll: Poll) -> None:
        for finding in poll.new if self._goes_on else poll.findings:
            if finding.key not in self._shown:
                _log_line(str(finding))
            if finding.is_warning:
                self._shown.add(finding.key)
        if poll.undelivered is not None:
            _log_line(f"--webhook did not take a finding, which will be sent again: {poll.undelivered}")
        if poll.away is not None and self.away is None and (poll.wrong or not self._once):
            _log_line(poll.away.message)
        if poll.away is None and not poll.wrong and poll.size != self._size:
            print(printable(f"{self._place}: {poll.size} entries checked, nothing is wrong"), flush=True)


def _log_line(line: str) -> None:
    print_error(f"kolm: {printable(line)}")


class LogFiles:
    """TileFiles that raise Unreachable for every failure to read. An exception of a signal's handler ends a read that
    hangs, because another thread waits for the answer, with gRPC's locks.
    """

    def __init__(self, files: TileFiles, place: str, failures: tuple[type[Exception], ...]) -> None:
        self._files = files
        self._place = place
        self._failures = failures

    def read(self, path: str, most: int) -> bytes:
        """Raises Unreachable, and LedgerError for a missing or malformed file."""
        try:
            return on_own_thread(partial(self._files.read, path, most)).result()
        except self._failures as error:
            raise Unreachable(f"the log at {self._place} cannot be read: {error}") from None


@contextmanager
def followed_log(ledger: str, tiles: str | None, *, witnessed: bool) -> Iterator[LogFiles]:
    """The log at `tiles` (a URL or a folder), or else of a ledger service, with checkpoints that enough witnesses have
    cosigned if `witnessed`. Raises UsageError.
    """
    if tiles is None:
        # Imported here: following tiles needs no gRPC.
        from services.client.errors import KolmError
        from services.client.ledger.ledger_tiles import LedgerTiles

        with ledger_at(ledger) as client:
            yield LogFiles(LedgerTiles(client, witnessed=witnessed), ledger, (KolmError,))
    elif is_url(tiles):
        yield LogFiles(HttpTiles(tiles), tiles, (OSError,))
    elif "://" in tiles:
        raise UsageError(f"--tiles: expected http://…, https://… or a folder, got {tiles!r}")
    else:
        yield LogFiles(TileFolder(Path(tiles)), tiles, (StoreError,))


def read_promises(places: Iterable[Path]) -> tuple[Promised, ...]:
    """The promises in files, and in `*.json` of folders. Raises UsageError for an unreadable one.

    An empty file in a folder is skipped, because it is still being written.
    """
    found = []
    for place in places:
        for path in sorted(place.glob("*.json")) if place.is_dir() else [place]:
            data = read_bytes("--promise", path, _MOST_BYTES)
            if data or path == place:
                found.append(Promised(str(path), data))
    return tuple(found)


class Webhook:
    """A URL that gets findings by POST."""

    def __init__(self, url: str, log: str) -> None:
        """`log` names the followed log. Raises UsageError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--webhook: expected http://… or https://…, got {url!r}")
        self._url = url
        self._log = log

    def send(self, finding: Finding, size: int, now: datetime) -> str | None:
        """Send a finding, in several attempts. Returns None for an answer 2xx, else the last problem."""
        body = json.dumps(webhook_body(finding, self._log, size, now), ensure_ascii=False).encode()
        problem = ""
        for pause in _PAUSES:
            time.sleep(pause)
            try:
                status, _ = post(self._url, body, "application/json", _POST_SECONDS)
            except OSError as error:
                problem = str(error)
                continue
            if 200 <= status < 300:
                return None
            problem = f"answers {status}"
        return problem


def webhook_body(finding: Finding, log: str, size: int, now: datetime) -> dict[str, Any]:
    """The body of a POST (docs/monitoring.md)."""
    return {"type": "kolm.finding.v1", "log": log, "size": size, "found_at": timestamp(now), **finding.to_document()}
