"""`kolm monitor`: follows a log and says when something is wrong. Over tiles it needs what `kolm verify` needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.failures import exits
from services.cli.options import options
from services.cli.values.parsing import age

if TYPE_CHECKING:
    from ledger.monitor.judgement import Limits
    from ledger.witness.tlog_policy import Policy


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Limits beyond which a log is wrong."""

    max_age: Annotated[
        str | None,
        typer.Option(
            metavar="AGE", help="Tell when the log is older: by its witnesses' word, or else unchanged so long."
        ),
    ] = None
    max_unreplayable: Annotated[
        int, typer.Option(min=0, metavar="N", help="Accept this many receipts that could not be replayed.")
    ] = 0
    since: Annotated[int, typer.Option(min=0, metavar="ENTRY", help="What is found about earlier ones is known.")] = 0
    lag: Annotated[
        str, typer.Option(metavar="AGE", help="How far the files may be behind the log; what is due waits as long.")
    ] = "0s"

    def limits(self, policy: Policy | None, origin: str | None) -> Limits:
        """Raises UsageError."""
        from ledger.monitor.judgement import Limits

        max_age = None if self.max_age is None else age("--max-age", self.max_age)
        lag = age("--lag", self.lag)
        return Limits(policy, origin, max_age, self.max_unreplayable, self.since, lag)


LIMITS = LimitOptions()


def monitor(
    tiles: Annotated[
        str | None,
        typer.Option(
            "--tiles", metavar="URL|DIR", help="Follow the log behind a URL or in a folder (C2SP tlog-tiles)."
        ),
    ] = None,
    ledger: options.Ledger = options.LEDGER,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What was seen of the log. Default: <data-dir>/monitor.sqlite3."),
    ] = None,
    promise: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE|DIR", help="A promise that the log must keep, or a folder of them (*.json)."),
    ] = None,
    limits: LimitOptions = LIMITS,
    policy: Annotated[
        Path | None,
        typer.Option(help="The expected log and witnesses (C2SP tlog-policy). Default: <trusted>/policy."),
    ] = None,
    origin: options.Origin = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, for cron.")] = False,
    every: Annotated[str, typer.Option(metavar="AGE", help="How long to wait between two looks.")] = "10s",
    webhook: Annotated[
        str | None,
        typer.Option(
            envvar="KOLM_MONITOR_WEBHOOK", metavar="URL", help="POST each new finding there as JSON, and go on."
        ),
    ] = None,
    home: options.Home = options.HOME,
    json: options.Json = False,
) -> None:
    """Follow a log: each checkpoint, entry, owed replay and promise. Exit code 3, and a line, when one is wrong."""
    from services.cli.jobs.monitor.watching import Watched, follow, watching
    from services.cli.jobs.receipts.bundle_trust import Sources, own_trust
    from services.cli.views.log.monitor import LookReport

    trust = own_trust(Sources(home.trusted, policy))
    watched = Watched(
        ledger,
        tiles,
        state or home.data_dir / "monitor.sqlite3",
        trust.keys,
        limits.limits(trust.policy, origin),
        tuple(promise or ()),
        webhook,
    )
    seconds = age("--every", every).total_seconds()
    report = LookReport(watched.place, as_json=json, once=once, goes_on=webhook is not None and not once)
    with watching(watched) as work:
        ended = follow(work, None if once else seconds, report.show)
    if once and not ended:
        raise typer.Exit(exits.TERMINATED)
    if report.wrong or report.away is None:
        raise typer.Exit(exits.VERIFICATION_FAILED if report.wrong else exits.OK)
    if once:
        raise report.away
    raise typer.Exit(report.away.exit_code)  # it was said as it began
