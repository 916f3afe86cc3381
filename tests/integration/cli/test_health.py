"""`kolm health`: what the services say, and the exit codes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from services.cli.jobs.running import health
from services.cli.jobs.running.health import Condition
from services.cli.main import app
from tests.integration.cli.scripted import ScriptedGeneration, mount
from tests.serving import serving

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(("proven", "told"), [(True, False), (False, True)])
def test_an_unproven_profile_is_told(proven: bool, told: bool) -> None:
    scripted = ScriptedGeneration()
    scripted.proven = proven
    with serving(mount(scripted)) as served:
        generation, *others = health.ask_all(served.address, NOWHERE, NOWHERE, NOWHERE)
    assert (generation.serving, generation.proven) == (True, proven)
    assert ("numerics profile unproven" in generation.detail) == told
    assert [each.serving for each in others] == [False] * 3


@pytest.mark.parametrize(
    ("serving", "proven", "code"), [(True, True, 0), (True, False, 3), (False, True, 5), (False, False, 5)]
)
def test_the_exit_code_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, serving: bool, proven: bool, code: int
) -> None:
    conditions = [Condition("generation", "a", True, "m", proven), Condition("ledger", "b", serving, "")]
    monkeypatch.setattr(health, "ask_all", lambda *_: conditions)
    done = CliRunner().invoke(app, ["health", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["healthy"]) == (code, code == 0)
