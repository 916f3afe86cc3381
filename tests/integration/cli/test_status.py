"""`kolm status` before real servers: a screen of 80 columns, lines in a pipe, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from services.cli.main import app
from services.runtime.access import Access
from services.runtime.credentials import write_principals
from services.runtime.metrics import Metrics
from tests.integration.cli.scripted import ScriptedGeneration, mount
from tests.serving import Served, serving

NOWHERE = "127.0.0.1:1"
RUNNER = CliRunner()


def flags(served: Served, *away: str) -> list[str]:
    names = ("generation", "ledger", "auditor", "registry")
    return [word for name in names for word in (f"--{name}", NOWHERE if name in away else served.address)]


def export(registry: CollectorRegistry) -> None:
    """One server plays all of them."""
    metrics = Metrics(registry)
    metrics.process("ledger")
    metrics.read("kolm_ledger_entries", lambda: 1234)
    metrics.read("kolm_ledger_checkpoint_age_seconds", lambda: 75)
    metrics.read("kolm_auditor_obligations", lambda: {("owed",): 3, ("overdue",): 0})
    metrics.read("vllm:num_requests_running", lambda: {("tiny",): 2})


def test_one_screen_shows_the_whole_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with serving(mount(ScriptedGeneration())) as served:
        export(served.registry)
        shown = RUNNER.invoke(app, ["status", *flags(served)])
        told = RUNNER.invoke(app, ["status", "--json", *flags(served)])
    assert (shown.exit_code, told.exit_code) == (0, 0), shown.output
    for words in ("profile proven", "2 running", "1,234 entries, checkpoint of 1 min ago", "3 owed, 0 overdue", "MiB"):
        assert words in shown.stdout, shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    document = json.loads(told.stdout)
    assert (document["serving"], document["broken"], document["entries"]) == (True, [], 1234)


def test_the_exit_code_says_what_is_wrong() -> None:
    scripted = ScriptedGeneration()
    scripted.proven = False
    with serving(mount(scripted)) as served:
        unproven = RUNNER.invoke(app, ["status", *flags(served)])
        away = RUNNER.invoke(app, ["status", *flags(served, "registry")])
    assert (unproven.exit_code, "✗ numerics profile unproven" in unproven.stdout) == (3, True)
    assert (away.exit_code, "does not answer, or is stopping" in away.stdout) == (5, True)


@pytest.mark.parametrize(
    ("proven", "away", "code"), [(True, (), 0), (False, (), 3), (True, ("ledger",), 5), (True, ("generation",), 5)]
)
def test_a_check_judges_only_who_serves_and_the_profile(proven: bool, away: tuple[str, ...], code: int) -> None:
    scripted = ScriptedGeneration()
    scripted.proven = proven
    with serving(mount(scripted)) as served:
        Metrics(served.registry).read("kolm_ledger_open_halts", lambda: 1)
        checked = RUNNER.invoke(app, ["status", "--check", "--json", *flags(served, *away)])
        judged = RUNNER.invoke(app, ["status", "--json", *flags(served, *away)])
    assert (checked.exit_code, json.loads(checked.stdout)["serving"]) == (code, not away)
    assert judged.exit_code == (code or 3), "an open halt is none of a check's business"


def test_a_server_that_does_not_tell_is_no_server_without_halts(tmp_path: Path) -> None:
    write_principals(tmp_path / "principals.json", [])
    with serving(mount(ScriptedGeneration()), access=Access(tmp_path / "principals.json")) as served:
        shown = RUNNER.invoke(app, ["status", *flags(served)])
        told = json.loads(RUNNER.invoke(app, ["status", "--json", *flags(served)]).stdout)
    assert (shown.exit_code, "(KOLM_TOKEN," in " ".join(shown.stdout.split())) == (5, True), shown.stdout
    assert "halts" not in shown.stdout
    assert "0 open" not in shown.stdout
    assert (told["halts_open"], told["entries"], told["verdicts"], told["running"]) == (None, None, None, None)


def test_a_server_that_says_not_serving_is_asked_why_and_a_fork_is_said() -> None:
    with serving(mount(ScriptedGeneration())) as served:
        metrics = Metrics(served.registry)
        metrics.read("kolm_ledger_takes_entries", lambda: 0)
        metrics.read("kolm_ledger_witness_silent", lambda: {("a",): 2, ("b",): 1})
        served.on_loop(lambda: served.server.set_serving("", False))
        shown = RUNNER.invoke(app, ["status", *flags(served)])
    problem = "✗ the ledger cannot write, 1 witnesses saw another history of the log"
    assert (shown.exit_code, problem in shown.stdout) == (5, True), shown.stdout


def test_watching_writes_a_short_line_for_each_look_into_a_pipe_and_objects_for_programs() -> None:
    with serving(mount(ScriptedGeneration())) as served:
        export(served.registry)
        shown = RUNNER.invoke(app, ["status", "--watch", "--every", "0.1", "--count", "2", *flags(served)])
        told = RUNNER.invoke(app, ["status", "--watch", "--json", "--every", "0.1", "--count", "1", *flags(served)])
    lines = shown.stdout.splitlines()
    assert (shown.exit_code, len(lines)) == (0, 2), shown.output
    assert all(" ok " in line and "2 run" in line and len(line) <= 80 for line in lines), lines
    assert json.loads(told.stdout)["rates"]["tokens"] == 0.0
