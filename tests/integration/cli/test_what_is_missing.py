"""Exit codes for what is not there: 4 for what a command is asked about, 2 for what else its command line names."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ledger.keys.ed25519 import SigningKey
from services.cli.main import app


def kolm(*words: object) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "300", "TERM": "dumb"}).invoke(app, list(map(str, words)))
    return result.exit_code, " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "words",
    [
        ("verify", "{}", "--trusted", "{keys}"),
        ("ledger", "verify", "--database", "{}", "--trusted", "{keys}"),
        ("ledger", "verify", "--depth", "quick", "--database", "{}", "--trusted", "{keys}"),
        ("datastore", "show", "{}"),
        ("datastore", "show", "{}", "--verify"),
    ],
    ids=" ".join,
)
def test_what_a_command_is_asked_about_is_4(tmp_path: Path, words: tuple[str, ...]) -> None:
    SigningKey.generate("log").publish(tmp_path / "keys")
    missing = tmp_path / "nothing"
    code, said = kolm(*(word.format(missing, keys=tmp_path / "keys") for word in words))
    assert code == 4, said
    assert str(missing) in said
    assert "there is no" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("datastore", "build", "{}", "--out", "{}-store"), "nothing: No such file or directory"),
    ],
)
def test_what_else_is_named_is_2(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    code, stderr = kolm(*(word.format(tmp_path / "nothing") for word in words))
    assert code == 2, stderr
    assert said in stderr
    assert list(tmp_path.iterdir()) == []
