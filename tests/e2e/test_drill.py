"""`python -m demo.drill`: a false answer that is found, halted, refused and resumed, on services of its own."""

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from demo.drill import Drill, Ran, drill_services, main
from services.cli.frame import exits
from services.cli.up.local_services import OWNER, token_file
from tests import cli
from tests.e2e.command import ForkingSupervisor, say


def test_the_drill_shows_verdict_halt_refusal_and_resume(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KOLM_TOKEN")
    services = drill_services(tmp_path / "data", model, environment={"OMP_NUM_THREADS": "1"})
    own = {"KOLM_DATA_DIR": services.data_dir, "KOLM_TOKEN_FILE": token_file(services.data_dir, OWNER)}
    shown, ended = io.StringIO(), list[tuple[str, int]]()

    def kolm(words: Sequence[str]) -> Ran:
        done = cli.kolm(*words, environment=own)
        ended.append((" ".join(words[:2]), done.code))
        return Ran(*done)

    supervisor = ForkingSupervisor(say)
    try:
        Drill(services, supervisor, Console(file=shown, width=300), kolm).run()
    finally:
        supervisor.stop(10.0)
    commands = [line for line in shown.getvalue().splitlines() if line.startswith("$ kolm ")]
    assert [line.split()[2:4][0] for line in commands] == [
        "generate", "generate", "receipts", "halts", "generate", "generate", "halts", "generate", "ledger",
    ]  # fmt: skip
    assert "DEVIATION" in shown.getvalue()
    assert {("halts list", exits.VERIFICATION_FAILED), ("halts resume", 0), ("ledger verify", 0)} <= set(ended)


def test_a_model_that_is_not_there_is_named_and_nothing_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "no/such/model"]) == exits.USAGE
    assert "no/such/model" in capsys.readouterr().err
