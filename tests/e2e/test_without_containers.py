"""The commands of docs/operations.md, "Without containers": a folder is copied, moved and given new keys.

An old copy of its log is refused.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from services.cli.up.local_services import LocalServices
from tests.documented import ROOT, WITHOUT_CONTAINERS
from tests.e2e.shell import Shell
from tests.e2e.test_incidents import append

SERVE = "kolm serve ledger --data-dir .kolm --principals .kolm/principals.json"


def chapter() -> list[str]:
    """The commands of the chapter "Without containers", which a person types."""
    page = (ROOT / "docs/operations.md").read_text("utf-8")
    start = page.index("## Without containers")
    lines = page[start : page.index("\n## ", start)].splitlines()
    return [line[4:].partition("  #")[0].strip() for line in lines if line.startswith("    ")]


def test_a_folder_is_copied_moved_and_given_new_keys_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shell = Shell(tmp_path)
    LocalServices(Path(".kolm"), Path("none")).trust_own_keys()
    copy, verify, pack, unpack, check, *rotations = chapter()
    assert (verify, check, *rotations) == WITHOUT_CONTAINERS
    with shell.serving(SERVE):
        append(shell.kolm, 0, 1)
        subprocess.run(copy, shell=True, check=True)
        assert "2 entries" in shell.run(verify)
        append(shell.kolm, 2)
    subprocess.run(pack, shell=True, check=True)
    Path(".kolm").rename("former")
    subprocess.run(unpack, shell=True, check=True)
    assert "nothing wrong" in shell.run(check)
    for line in rotations:
        shell.run(line)
    with shell.serving(SERVE):
        append(shell.kolm, 3)
        assert "7 entries (3 keys, 4 receipts)" in shell.run("kolm ledger verify")

    for file in Path(".kolm").glob("ledger.sqlite3*"):
        file.unlink()
    shutil.copy("log.sqlite3", ".kolm/ledger.sqlite3")
    assert shell.kolm("ledger", "verify", "--depth=quick", "--data-dir=.kolm").returncode == 3
    with pytest.raises(AssertionError, match="older"), shell.serving(SERVE):
        pass
