from collections.abc import Iterator
from pathlib import Path

import pytest

from services.auditor import auditor
from tests.fakes import tiny_model  # noqa: F401 (torch is there before an auditor in this process would spare it)
from tests.integration.auditor.deployment import Deployment, opened_deployment


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """Every pass keeps what it has folded, so that every auditor after the first goes on from there."""
    monkeypatch.setattr(auditor, "_KEPT_EVERY", 1)
    with opened_deployment(tmp_path) as opened:
        yield opened
