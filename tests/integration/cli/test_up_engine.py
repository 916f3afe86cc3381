"""`kolm up` before another engine: what it starts, and with which flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.up.local_services import LocalServices
from services.cli.up.up_options import ListenOptions
from tests import documented
from tests.cli import kolm
from tests.fakes.tiny_model import make_tiny_model


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[LocalServices]:
    """The services of each start, which starts nothing."""
    found: list[LocalServices] = []
    monkeypatch.setattr("services.cli.up.up._run", lambda services, *others, as_json: found.append(services))
    monkeypatch.setattr(ListenOptions, "check_ports", lambda *_: None)
    return found


def test_the_line_of_the_page_puts_the_generation_service_before_the_engine(
    ran: list[LocalServices], tmp_path: Path
) -> None:
    weights = make_tiny_model(tmp_path / "model", layers=1)
    assert kolm(*documented.BEFORE_VLLM.replace("path/to/model", str(weights)).split()[1:]).code == 0
    (services,) = ran
    flags = " ".join(services.generation("ledger:1", "registry:1").flags)
    given = f"--engine vllm --plain-url http://127.0.0.1:8000 --url http://127.0.0.1:8001 --weights {weights}"
    assert (given in flags, "--model" in flags.split()) == (True, False)
    audited = "--engine vllm --plain-url http://127.0.0.1:8000"
    assert audited in " ".join(services.auditor("ledger:1").flags)


def test_what_is_missing_is_said_before_anything_starts(ran: list[LocalServices]) -> None:
    assert kolm("up", "--engine", "vllm")[0] == 2
    assert kolm("up", "--plain-url", "http://127.0.0.1:1")[0] == 2
    assert not ran
