"""`python -m demo.drill`: a false answer that is found, halted, refused and resumed, on services of its own."""

import io
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from demo import run
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


def test_the_main_job_has_no_token_and_no_setting_of_the_shell(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KOLM_")]:
        monkeypatch.setenv(name, os.environ[name])  # restored afterwards
    monkeypatch.setenv("KOLM_GENERATION_HEAD", "another")
    seen = list[set[str]]()

    def ran(*_: object) -> int:
        seen.append({name for name in os.environ if name.startswith(("KOLM_TOKEN", "KOLM_GENERATION"))})
        return exits.FAILED

    monkeypatch.setattr("demo.run._run", ran)
    monkeypatch.setattr("sys.argv", ["demo.run", "--model", str(model)])
    assert (run.main(), seen) == (exits.FAILED, [set()])
    monkeypatch.setattr("sys.argv", ["demo.run", "--prompts", "0"])
    with pytest.raises(SystemExit, check=lambda end: end.code == exits.USAGE):
        run.main()
