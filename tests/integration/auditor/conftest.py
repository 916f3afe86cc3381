from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.auditor.deployment import Deployment, opened_deployment


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with opened_deployment(tmp_path) as opened:
        yield opened
