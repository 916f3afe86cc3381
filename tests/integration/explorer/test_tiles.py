"""Tiles of the log over HTTP, for clients of others."""

import gzip
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.bundle.tiles import TiledTree, read_checkpoint, read_entry_bundle
from ledger.errors import NotFound
from ledger.keys.ed25519 import PublicKey
from ledger.keys.note import COSIGNATURE, VerifierKey
from ledger.tree.checkpoint import open_checkpoint
from ledger.tree.merkle import consistency_proof, leaf_hash, tree_root, verify_consistency
from ledger.tree.tile import TileHashes
from ledger.witness.tlog_policy import Policy, PolicyWitness
from services.cli.verify.tile_sources import HttpTiles
from services.client.errors import Unavailable
from tests.append_stream import append_many
from tests.integration.explorer.site import Site, explored, running_site
from tests.mutations import replace
from tests.serving import fetched
from tests.unit.ledger.builders import KEYS, ORIGIN, receipt, signed


def test_the_checkpoint_is_the_newest_and_not_cached(site: Site) -> None:
    status, headers, note = fetched(site.url, "/checkpoint")
    assert (status, note) == (200, site.client.checkpoint().note)
    assert (headers["content-type"], headers["cache-control"]) == ("text/plain; charset=utf-8", "no-cache")


def test_tiles_never_change(site: Site) -> None:
    size = site.client.checkpoint().tree_size
    for path in (f"/tile/0/000.p/{size}", "/tile/0/000.p/7", "/tile/entries/000.p/7"):
        status, headers, data = fetched(site.url, path)
        assert (status, headers["content-type"]) == (200, "application/octet-stream")
        assert headers["cache-control"] == "public, max-age=31536000, immutable"
        if "entries" not in path:
            assert data == site.client.tile(0, 0)[: 32 * int(path.rpartition("/")[2])]


def test_entries_shrink_on_their_way(site: Site) -> None:
    plain = fetched(site.url, "/tile/entries/000.p/60")[2]
    _, headers, data = fetched(site.url, "/tile/entries/000.p/60", **{"accept-encoding": "gzip"})
    assert (headers["content-encoding"], headers["vary"]) == ("gzip", "accept-encoding")
    assert (gzip.decompress(data), len(data) < len(plain) / 2) == (plain, True)
    assert read_entry_bundle(plain) == [site.client.entry(index).entry for index in range(60)]


@pytest.mark.parametrize(
    "path",
    [
        *("/tile/0/000", "/tile/0/000.p/255", "/tile/1/000.p/1", "/tile/entries/000", "/tile/entries/001.p/1"),
        *("/tile/0/x999/x999/x999/x999/x999/999", "/tile/63/000", "/tile/64/000", "/tile/0/0", "/tile/", "/tile/x"),
        *("/tile/entries/../../checkpoint", "/tile/0/000.p/0"),
    ],
)
def test_what_the_log_does_not_have_is_not_there(site: Site, path: str) -> None:
    status, headers, body = fetched(site.url, path)
    assert (status, headers["cache-control"]) == (404, "no-store")
    assert body.endswith(b"\n")
    assert b"<" not in body


def test_a_client_follows_the_growing_log(growing: Site) -> None:
    files = HttpTiles(growing.url)
    keys = [KEYS["log"].public, *growing.source.trusted.keys("log")]
    old = open_checkpoint(read_checkpoint(files), keys)
    with append_many(growing.client, ((signed(receipt(1_000 + number)), None) for number in range(500))) as answers:
        assert sum(1 for _ in answers) == 500
    new = open_checkpoint(read_checkpoint(files), keys)
    assert new.size == old.size + 500
    tree = TiledTree(files, new.size)
    hashes = TileHashes(tree)
    assert tree_root(new.size, hashes) == new.root
    proof = consistency_proof(old.size, new.size, hashes)
    verify_consistency(old.size, new.size, proof, old.root, new.root)
    assert [leaf_hash(entry) for entry in tree.entries(old.size)] == [
        hashes.subtree(0, index) for index in range(old.size, new.size)
    ]
    assert len(files.read("tile/0/001", 8192)) == 8192
    assert len(files.read("tile/1/000.p/2", 8192)) == 64


def test_a_ledger_that_is_away_is_503(site: Site) -> None:
    def away(_: object) -> None:
        raise Unavailable("no ledger")

    with site.lying(GetTile=away, GetCheckpoint=away):
        for path in ("/checkpoint", "/tile/0/000.p/3"):
            status, headers, _ = fetched(site.url, path)
            assert (status, headers["cache-control"]) == (503, "no-store")


def test_with_witnesses_the_checkpoint_is_one_that_they_have_cosigned(site: Site) -> None:
    witness = VerifierKey("witness.example/w", KEYS["witness"].public, COSIGNATURE)
    policy = Policy(logs=(), witnesses=(PolicyWitness("w", witness),), quorum="w")
    with explored(replace(site.source, policy=policy)) as url, pytest.raises(NotFound):
        read_checkpoint(HttpTiles(url))  # there is none, and nothing newer is shown in its place


PROGRAM = Path(__file__).parent / "sumdb_client.go"
ROOT = Path(__file__).parents[3]
DEBIAN = Path("/usr/share/gocode")  # the folder of its packages' sources
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
def growing(tmp_path: Path) -> Iterator[Site]:
    with running_site(tmp_path) as running:
        yield running


def followed(client: Path, growing: Site, state: Path, key: PublicKey) -> subprocess.CompletedProcess[str]:
    command = [str(client), growing.url, VerifierKey(ORIGIN, key).to_text(), str(state)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_follows_the_growing_log_and_refuses_another_key_and_another_log(
    client: Path, growing: Site, tmp_path: Path
) -> None:
    (key,) = growing.source.trusted.keys("log")
    state, size = tmp_path / "state", growing.client.checkpoint().tree_size
    seen = []
    for more in (0, 1, 500):
        with append_many(
            growing.client, ((signed(receipt(1_000 * more + number)), None) for number in range(more))
        ) as done:
            assert sum(1 for _ in done) == more
        answer = followed(client, growing, state, key)
        assert answer.returncode == 0, answer.stderr
        seen.append(tuple(map(int, answer.stdout.split())))
    assert seen == [(0, size), (size, 1), (size + 1, 500)]

    unsigned = followed(client, growing, state, KEYS["witness"].public)
    assert (unsigned.returncode, "unverified" in unsigned.stderr or "no verifiable" in unsigned.stderr) == (1, True)
    with growing.lying(GetTile=lambda answer: setattr(answer, "hashes", bytes(len(answer.hashes)))):
        lied = followed(client, growing, tmp_path / "afresh", key)
    assert (lied.returncode, "downloaded inconsistent tile" in lied.stderr) == (1, True)
