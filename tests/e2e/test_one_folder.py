"""Several stacks and commands on one data folder."""

import os
import re
import shlex
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.cli.frame import exits
from services.generation.target.identity import base_cid
from tests.cli import CLOSED, FREE, Ended, kolm
from tests.e2e.command import PATIENCE, children, local_services, own_environment, running, until, up
from tests.fakes.tiny_model import make_tiny_model
from tests.forked import Forked, ran


@pytest.fixture(autouse=True)
def as_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find the token of this start by themselves."""
    monkeypatch.delenv("KOLM_TOKEN")


@dataclass(frozen=True)
class Stack:
    """`kolm up` on free ports, as a person starts it. `log` is its output."""

    process: Forked
    folder: Path
    log: str

    def kolm(self, *words: object, **options: Any) -> Ended:
        """A command with the folder as its only flag."""
        return kolm(*words, "--data-dir", self.folder, **options)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack") / "data"
    log = folder.with_name("up.log")
    command = (str(log), f"--data-dir={folder}", f"--model={model}", *FREE, "--audit-rate=0")
    with Forked("tests.e2e.forking_up", *command, environment=own_environment()) as process:
        until(lambda: (log.exists() and "ready after" in log.read_text()) or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield Stack(process, folder, log.read_text())


def test_a_second_kolm_up_on_the_folder_is_refused_and_the_first_goes_on(stack: Stack, model: Path) -> None:
    folder = stack.folder
    before = contents(folder)
    assert {Path("principals.json"), Path("tokens/local"), Path("run/http.address")} <= before.keys()
    code, output = ran(
        "services.cli", "up", f"--data-dir={folder}", f"--model={model}", *FREE, environment=own_environment()
    )
    assert (code, f"pid {stack.process.pid}" in output, "Traceback" in output) == (exits.USAGE, True, False), output
    assert re.search(r"since \d{4}-\d\d-\d\dT", output)
    assert contents(folder) == before
    key = f"--token-file={folder / 'tokens/local'}"  # which it printed for API clients
    answer = stack.kolm("generate", "The ledger", "--max-tokens=2", "--json", key).document
    assert answer["usage"]["completion_tokens"] == 2


def test_the_command_that_kolm_up_names_asks_its_services_from_any_folder(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (hint,) = re.findall("try: kolm (.+?)  +Ctrl-C", stack.log)
    done = kolm(*shlex.split(hint), "--max-tokens=2")
    assert (done.code, bool(done.out)) == (0, True), done.err


@pytest.mark.parametrize(
    "words", [("status", "--check"), ("ledger", "head"), ("heads", "list"), ("receipts", "list"), ("halts", "list")]
)
def test_commands_find_the_services_of_a_folder(stack: Stack, words: tuple[str, ...]) -> None:
    assert stack.kolm(*words).code == 0
    assert kolm(*words, environment={"KOLM_DATA_DIR": stack.folder}).code == 0


def test_a_flag_wins_over_the_environment_and_that_over_the_folder(stack: Stack) -> None:
    ledger = (stack.folder / "run/ledger.address").read_text().strip()
    away = {"KOLM_LEDGER": CLOSED}
    assert stack.kolm("ledger", "head", environment=away).code == exits.UNAVAILABLE
    assert stack.kolm("ledger", "head", f"--ledger={ledger}", environment=away).code == 0
    assert stack.kolm("ledger", "head", f"--ledger={CLOSED}").code == exits.UNAVAILABLE


def test_an_address_that_a_killed_stack_has_left_is_named_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "run" / "ledger.address"
    file.parent.mkdir()
    file.write_text(f"{CLOSED}\n")
    done = kolm("ledger", "head", "--data-dir", tmp_path)
    assert (done.code, str(file) in done.err, "--ledger" in done.err) == (exits.UNAVAILABLE, True, True), done.err


def test_a_folder_whose_services_were_started_one_by_one_is_refused_as_well(tmp_path: Path, model: Path) -> None:
    with running(local_services(tmp_path / "data", model)):
        before = contents(tmp_path / "data")
        command = ("up", f"--data-dir={tmp_path / 'data'}", f"--model={model}", *FREE)
        code, output = ran("services.cli", *command, environment=own_environment())
        assert (code, "--data-dir" in output) == (exits.USAGE, True), output
        assert contents(tmp_path / "data") == before


def contents(folder: Path) -> dict[Path, bytes]:
    """The files that a stack writes at its start, and changes at no other time."""
    started = (*folder.glob("*.lock"), folder / "principals.json", *folder.glob("tokens/*"), *folder.glob("run/*"))
    return {path.relative_to(folder): path.read_bytes() for path in (*started, *folder.glob("trusted/*"))}


def test_receipts_of_another_model_stay_owed_and_are_replayed_by_an_audit_with_it(tmp_path: Path, model: Path) -> None:
    data, other = tmp_path / "data", make_tiny_model(tmp_path / "other", seed=1)
    with up(data, model) as (process, ours):
        auditor = children(process)[3]
        os.kill(auditor, signal.SIGSTOP)
        receipts = [ours.json("generate", "The ledger", "--max-tokens=4")["receipt"]["receipt_id"] for _ in range(2)]
        os.kill(auditor, signal.SIGKILL)  # without a verdict on either; `kolm up` ends with it
        process.wait(PATIENCE)
    with up(data, other) as (_, ours):
        until(lambda: (data / "left.json").exists())
        assert ours.json("receipts", "list", "--outcome=UNREPLAYABLE") == []
        assert base_cid(model) in (tmp_path / "up.log").read_text()
        done = kolm("audit", "run", "--model", model, "--data-dir", data, "--json").document
        assert [(each["receipt_id"], each["outcome"]) for each in done["verdicts"]] == [
            (receipt, "EXACT") for receipt in receipts
        ]
