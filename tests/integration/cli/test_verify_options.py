"""Options of `kolm verify` that do not fit its file, and files that are none: named with what was expected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from tests.unit.ledger.test_mutations import FILES
from tests.unit.ledger.vectors import VECTORS

BUNDLE, KEYS = str(VECTORS / "bundles/good.tar.gz"), VECTORS / "log/keys"
NO_KEY = str(KEYS / "log.pub")
NAMES = {"proof": "p.tlog-proof", "SCITT": "s.cose", "answer": "a.json"}


@pytest.mark.parametrize(
    ("name", "options", "code", "said"),
    [
        (None, ("--prompt", NO_KEY), 2, "--prompt and --output belong to a receipt file"),
        ("proof", ("--output", NO_KEY), 2, "--prompt and --output belong to a receipt file"),
        (None, ("--history", BUNDLE), 2, "--history: belongs to a proof file; a bundle brings its own"),
        ("proof", ("--as-claimed",), 2, "--as-claimed: a proof file holds no keys"),
        ("SCITT", ("--as-claimed",), 2, "--as-claimed: a statement holds no keys"),
        ("SCITT", ("--promise", "p"), 2, "--promise belongs to a bundle or a receipt file"),
        ("answer", (), 2, "which promise is this the answer to?"),
        (None, ("--promise", NO_KEY), 2, "is no promise: "),
        (None, ("--policy", NO_KEY), 2, "--policy: "),
        (None, ("--checkpoint", NO_KEY), 2, "is no checkpoint: "),
        (None, ("--tsa", NO_KEY), 2, "holds no certificates: "),
        (None, ("--policy", "nothing"), 2, "--policy: cannot read nothing: No such file or directory"),
        ("proof", ("--history", "nothing"), 4, "there is no bundle at nothing"),
    ],
)
def test_it_is_named(name: str | None, options: tuple[str, ...], code: int, said: str, tmp_path: Path) -> None:
    path = Path(BUNDLE)
    if name is not None:
        path = tmp_path / NAMES[name]
        path.write_bytes(FILES[name].data)
    done = CliRunner().invoke(app, ["verify", str(path), "--trusted", str(KEYS), *options])
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = CliRunner().invoke(app, ["verify", str(tmp_path / "pipe"), "--trusted", str(KEYS)])
    assert (done.exit_code, "is neither a file nor a folder" in done.stderr) == (2, True)
