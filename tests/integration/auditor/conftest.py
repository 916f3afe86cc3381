from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.auditor.house import House, opened_house


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with opened_house(tmp_path) as opened:
        yield opened
