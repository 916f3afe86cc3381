"""Several stacks and commands on one data folder."""

import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.frame import exits
from services.generation.target.identity import base_cid
from tests.e2e.command import ENVIRONMENT, PATIENCE, Kolm, children, local_services, running, until, up
from tests.fakes.tiny_model import make_tiny_model
from tests.forked import Forked, ran

FREE = tuple(f"--{name}-port=0" for name in ("generation", "ledger", "auditor", "registry", "explorer", "http"))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[tuple[Forked, Kolm, Path]]:
    """`kolm up` on a folder."""
    folder = tmp_path_factory.mktemp("stack") / "data"
    with up(folder, model, "--audit-rate=0") as (process, kolm):
        yield process, kolm, folder


def test_a_second_kolm_up_on_the_folder_is_refused_and_the_first_goes_on(
    stack: tuple[Forked, Kolm, Path], model: Path
) -> None:
    process, kolm, folder = stack
    before = contents(folder)
    assert {Path("principals.json"), Path("tokens/local"), Path("run/http.address")} <= before.keys()
    code, said = ran("services.cli", "up", f"--data-dir={folder}", f"--model={model}", *FREE, environment=ENVIRONMENT)
    assert (code, f"pid {process.pid}" in said, "Traceback" in said) == (exits.USAGE, True, False), said
    assert re.search(r"since \d{4}-\d\d-\d\dT", said)
    assert contents(folder) == before
    key = f"--token-file={folder / 'tokens/local'}"  # which it printed for API clients
    assert kolm.json("generate", "The ledger", "--max-tokens=2", key)["usage"]["completion_tokens"] == 2


def test_a_folder_whose_services_were_started_one_by_one_is_refused_as_well(tmp_path: Path, model: Path) -> None:
    with running(local_services(tmp_path / "data", model)):
        before = contents(tmp_path / "data")
        command = ("up", f"--data-dir={tmp_path / 'data'}", f"--model={model}", *FREE)
        code, said = ran("services.cli", *command, environment=ENVIRONMENT)
        assert (code, "--data-dir" in said) == (exits.USAGE, True), said
        assert contents(tmp_path / "data") == before


def contents(folder: Path) -> dict[Path, bytes]:
    """The files that a stack writes at its start, and changes at no other time."""
    started = (*folder.glob("*.lock"), folder / "principals.json", *folder.glob("tokens/*"), *folder.glob("run/*"))
    return {path.relative_to(folder): path.read_bytes() for path in (*started, *folder.glob("trusted/*"))}


def test_receipts_of_another_model_stay_owed_and_are_replayed_by_the_command_that_kolm_up_names(
    tmp_path: Path, model: Path
) -> None:
    data, other = tmp_path / "data", make_tiny_model(tmp_path / "other", seed=1)
    with up(data, model) as (process, kolm):
        auditor = children(process)[3]
        os.kill(auditor, signal.SIGSTOP)
        receipts = [kolm.json("generate", "The ledger", "--max-tokens=4")["receipt"]["receipt_id"] for _ in range(2)]
        os.kill(auditor, signal.SIGKILL)  # without a verdict on either; `kolm up` ends with it
        process.wait(PATIENCE)
    with up(data, other) as (_, kolm):
        said = (tmp_path / "up.log").read_text()
        (line,) = [line for line in said.splitlines() if "await an audit" in line]
        assert base_cid(model) in line
        assert ("2 receipts" in line, line.index("await") < said.index("is loaded after")) == (True, True)
        until(lambda: (data / "left.json").exists())
        assert kolm.json("receipts", "list", "--outcome=UNREPLAYABLE") == []
        (command,) = re.findall("`kolm (audit run [^`]+)`", line)
        done = kolm.json(*shlex.split(command))
        assert [(each["receipt_id"], each["outcome"]) for each in done["verdicts"]] == [
            (receipt, "EXACT") for receipt in receipts
        ]
