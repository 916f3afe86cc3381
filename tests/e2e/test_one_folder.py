"""Several stacks and commands on one data folder."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.frame import exits
from tests.e2e.command import ENVIRONMENT, Kolm, local_services, running, up
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
