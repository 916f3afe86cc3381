"""A monitor's memory, of each kind."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ledger.monitor.memory import MonitorMemory
from services.cli.monitor.state_file import SqliteMonitorMemory
from tests.unit.ledger.monitor.listed_log import ListedMemory


@pytest.fixture(params=["listed", "sqlite"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MonitorMemory]:
    if request.param == "listed":
        yield ListedMemory()
    else:
        with closing(SqliteMonitorMemory(tmp_path / "state.sqlite3")) as opened:
            yield opened
