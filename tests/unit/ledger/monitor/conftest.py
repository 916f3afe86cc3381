"""A monitor's memory."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ledger.monitor.memory import MonitorMemory


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[MonitorMemory]:
    with closing(MonitorMemory(tmp_path / "state.sqlite3")) as opened:
        yield opened
