"""`kolm halts drill`: each step happens, in a log that says what it is, and nothing of the caller's is touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.sql.store import SqlEntryStore
from ledger.tree.entry import Entry
from services.cli.frame.values import database_place
from services.cli.halts.drill import ORIGIN, TENANT
from services.cli.halts.drill_engine import load
from services.runtime.process import CannotStart
from tests.documented import DRILL
from tests.e2e.command import KOLM, PATIENCE

STEPS = ["EXACT", "DEVIATION", "halt", "refusal", "resume", "log"]


@contextmanager
def drilling(folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """The drill as somebody runs it whose variables and folder are those of real services."""
    for name in ("here", "temporary"):
        (folder / name).mkdir()
    real = dict.fromkeys(("KOLM_GENERATION", "KOLM_LEDGER", "KOLM_GENERATION_LISTEN"), "127.0.0.1:1")
    paths = {name: str(folder / "real") for name in ("KOLM_DATA_DIR", "KOLM_LEDGER_DATA_DIR", "KOLM_GENERATION_MODEL")}
    environment = {**os.environ, **real, **paths, "KOLM_TOKEN": "real", "TMPDIR": str(folder / "temporary")}
    command = [*KOLM, *DRILL.split()[1:], *flags]
    with subprocess.Popen(
        command, cwd=folder / "here", env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_every_step_of_the_drill_happens_in_a_log_that_says_that_it_is_a_drill(tmp_path: Path) -> None:
    with drilling(tmp_path, "--json") as process:
        assert process.stderr is not None
        assert any("EXACT" in line for line in process.stderr)
        process.send_signal(signal.SIGSTOP)  # its folder is there as long as it stands still
        try:
            _says_that_it_is_a_drill(next((tmp_path / "temporary").glob("kolm-drill-*/data/*.sqlite3")))
        finally:
            process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    said = json.loads(out)
    assert (said["drill"], [step["name"] for step in said["steps"]]) == (True, STEPS)
    assert _names(tmp_path) == {"here", "temporary"}


def test_a_drill_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    with drilling(tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert _names(tmp_path) == {"here", "temporary"}


def test_the_server_that_breaks_answers_loads_no_model_but_the_drills(model: Path) -> None:
    with pytest.raises(CannotStart):
        load(model)


def _says_that_it_is_a_drill(database: Path) -> None:
    with closing(SqlEntryStore.open_for_reading(database_place(str(database)))) as store:
        checkpoint = store.latest_checkpoint()
        entries = [Entry.from_bytes(each) for each in store.entries(0, 100)]
    assert checkpoint is not None
    assert checkpoint.decode().splitlines()[0] == ORIGIN
    documents = [read_document(entry.envelope) for entry in entries]
    assert {each.tenant for each in documents if isinstance(each, Receipt)} == {TENANT}


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}
