"""Two auditor processes on one schedule, one killed in the middle of a replay: nothing is lost or judged twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.auditor.journal import Terms
from services.auditor.schedule import sqlite_url
from tests.e2e.command import until
from tests.integration.auditor.deployment import Deployment

RECEIPTS = 8


@contextmanager
def worker(deployment: Deployment, url: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-m",
        "tests.integration.auditor.worker",
        deployment.address,
        str(deployment.trusted),
        url,
        *flags,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def judged(deployment: Deployment, count: int, by: subprocess.Popen[str]) -> list[int]:
    """The receipts that have verdicts, once there are `count`."""
    found: list[int] = []

    def enough() -> bool:
        assert by.poll() is None
        found[:] = [verdict.receipt_index for verdict in deployment.ledger.verdicts()]
        return len(found) >= count

    until(enough)
    return found


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_the_receipts_of_a_killed_auditor_are_picked_up_and_none_is_judged_twice(
    deployment: Deployment, database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = sqlite_url(tmp_path / "shared.sqlite3")
    if database == "postgres":
        url = request.getfixturevalue("postgres_url")
    list(deployment.auditor(Terms(1.0, 86_400)).run_pass())
    indexes = [deployment.receive(number) for number in range(RECEIPTS)]
    with worker(deployment, url, "hang") as doomed:
        assert doomed.stdout is not None
        assert doomed.stdout.readline() == f"examining {indexes[0]}\n"
        with worker(deployment, url) as survivor:
            assert sorted(judged(deployment, RECEIPTS - 1, survivor)) == indexes[1:]
            doomed.send_signal(signal.SIGKILL)
            survivor.send_signal(signal.SIGUSR1)
            assert Counter(judged(deployment, RECEIPTS, survivor)) == Counter(indexes)
    assert {verdict.outcome for verdict in deployment.ledger.verdicts()} == {"EXACT"}
