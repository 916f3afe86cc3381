"""`kolm verify`, and `kolm monitor` over tiles, need no torch, no grpc, no SQL: importing any of them may fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ledger.bundle.tile_folder import TileFolder
from ledger.bundle.tlog_tiles import export_tiles
from tests.unit.ledger.builders import KEYS, policy, receipt
from tests.unit.ledger.monitor.listed_log import ListedLog
from tests.unit.ledger.vectors import VECTORS

ROOT = Path(__file__).parents[4]
BLOCKED = ("torch", "numpy", "grpc", "google", "kolm", "sqlalchemy", "pydantic_settings", "starlette")
ALONE = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name + " is not installed")

sys.meta_path.insert(0, Blocker())
from services.cli.main import app
app(sys.argv[1:], prog_name="kolm")
"""


def kolm(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = ALONE.format(blocked=set(BLOCKED))
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("good", 0, "verified: the whole log of 14 entries; replays owed: "),
        ("payload_edited", 3, "not verified: the multi-proof leads to another root"),
    ],
)
def test_a_bundle_is_verified_with_nothing_else_installed(name: str, code: int, said: str) -> None:
    trusted = str(VECTORS / "log/keys")
    done = kolm("verify", str(VECTORS / f"bundles/{name}.tar.gz"), "--trusted", trusted, "--max-unreplayable", "1")
    assert (done.returncode, said in done.stdout) == (code, True), done.stdout + done.stderr


@pytest.mark.slow
def test_tiles_are_monitored_with_nothing_else_installed(tmp_path: Path) -> None:
    log = ListedLog()
    log.append(policy(0.0), receipt(0))
    TileFolder(tmp_path / "tiles").write(export_tiles(log.entries, log.checkpoint()))
    for role in ("log", "receipts", "auditor"):
        KEYS[role].publish(tmp_path / "trusted")
    done = kolm("monitor", "--once", "--tiles", str(tmp_path / "tiles"), "--data-dir", str(tmp_path))
    assert (done.returncode, "2 entries checked, nothing is wrong" in done.stdout) == (0, True), done.stderr


@pytest.mark.slow
def test_what_is_wrong_is_explained_without_the_client(tmp_path: Path) -> None:
    good, keys = str(VECTORS / "bundles/good.tar.gz"), str(VECTORS / "log/keys")
    for path, trusted, code, said in (
        ("nothing.tar.gz", keys, 4, "there is no nothing.tar.gz; expected a bundle, a receipt file"),
        (good, "nowhere", 2, "whose signatures do you trust?"),
        (good, str(tmp_path), 2, "holds no public key of a log"),
        (str(VECTORS / "bundles/expected.json"), keys, 3, "is no receipt file or statement"),
        (str(VECTORS / "bundles/policy"), keys, 3, "archive"),
    ):
        done = kolm("verify", path, "--trusted", trusted)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
