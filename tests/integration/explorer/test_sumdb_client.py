"""The log is followed over HTTP, while it grows, by somebody else's client: that of Go's checksum database."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.keys.ed25519 import PublicKey
from ledger.keys.note import VerifierKey
from tests.integration.explorer.site import Site, running_site
from tests.unit.ledger.builders import KEYS, ORIGIN, receipt, signed

PROGRAM = Path(__file__).parent / "sumdb_client.go"
ROOT = Path(__file__).parents[3]
DEBIAN = Path("/usr/share/gocode")  # where its packages put sources
SUMDB = DEBIAN / "src" / "golang.org" / "x" / "mod" / "sumdb" / "tlog"
REQUIRED = "KOLM_TESTS_NEED_LANGUAGES"
"""Set where missing tools are a failure and not a reason to skip (continuous integration)."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("go") is None or not SUMDB.is_dir():
        if os.environ.get(REQUIRED):
            raise AssertionError(f"{REQUIRED} asks for Go and golang-golang-x-mod-dev; .ci/run installs them")
        pytest.skip("Go and its sumdb are not installed")
    built = tmp_path_factory.mktemp("client") / "sumdb_client"
    places = {"GO111MODULE": "off", "GOPATH": str(DEBIAN), "GOCACHE": str(ROOT / ".cache" / "go-build")}
    subprocess.run(["go", "build", "-o", str(built), str(PROGRAM)], env={**os.environ, **places}, check=True)
    return built


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with running_site(tmp_path) as running:
        yield running


def followed(client: Path, site: Site, state: Path, key: PublicKey) -> subprocess.CompletedProcess[str]:
    command = [str(client), site.url, VerifierKey(ORIGIN, key).to_text(), str(state)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_follows_the_growing_log_and_refuses_another_key_and_another_log(
    client: Path, site: Site, tmp_path: Path
) -> None:
    (key,) = site.source.trusted.keys("log")
    state, size = tmp_path / "state", site.client.checkpoint().tree_size
    seen = []
    for more in (0, 1, 500):
        with site.client.append_many((signed(receipt(1_000 * more + number)), None) for number in range(more)) as done:
            assert sum(1 for _ in done) == more
        answer = followed(client, site, state, key)
        assert answer.returncode == 0, answer.stderr
        seen.append(tuple(map(int, answer.stdout.split())))
    assert seen == [(0, size), (size, 1), (size + 1, 500)]

    unsigned = followed(client, site, state, KEYS["witness"].public)
    assert (unsigned.returncode, "unverified" in unsigned.stderr or "no verifiable" in unsigned.stderr) == (1, True)
    with site.lying(GetTile=lambda answer: setattr(answer, "hashes", bytes(len(answer.hashes)))):
        lied = followed(client, site, tmp_path / "afresh", key)
    assert (lied.returncode, "downloaded inconsistent tile" in lied.stderr) == (1, True)
