"""Incidents of docs/operations.md, on running services: a full disk, and a log that has forked."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from ledger.documents.signed_document import sign_document
from ledger.keys.ed25519 import SigningKey
from ledger.keys.note import VerifierKey
from ledger.tree.checkpoint import open_checkpoint
from services.cli.up.local_services import Addresses, LocalServices
from services.cli.up.supervisor import Plan
from services.client.ledger.ledger import LedgerClient
from tests.e2e.command import PATIENCE, ForkingSupervisor, Kolm, local_services, own_environment, say, until
from tests.mutations import replace
from tests.unit.ledger.builders import receipt

PROMPT = "The ledger keeps one receipt for every request"
SMALL = "32m"
"""A disk for a ledger or a generation server that holds a few receipts."""


@contextmanager
def on_a_small_disk(plan: Plan, disk: Path) -> Iterator[tuple[str, Path]]:
    """The service, and its disk: `disk` is a separate file system for the service alone."""
    disk.mkdir(exist_ok=True)
    plan.ready_file.unlink(missing_ok=True)
    mount = f'mount -t tmpfs -o size={SMALL} none "$0" && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, str(disk), sys.executable, "-m", plan.module, *plan.flags]
    process = subprocess.Popen(command, env={**own_environment(), **plan.environment})
    try:
        until(lambda: process.poll() is not None or plan.ready_file.exists())
        yield plan.ready_file.read_text().strip(), Path(f"/proc/{process.pid}/root{disk}")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def fill(disk: Path) -> Path:
    """Every byte of it; the file to delete."""
    filling = disk / "filling"
    with suppress(OSError), filling.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(disk).f_bavail == 0
    return filling


def receipts(kolm: Kolm) -> list[str]:
    return sorted(str(each["receipt_id"]) for each in kolm.json("receipts", "list"))


def asked(kolm: Kolm) -> str:
    """The receipt of an answer."""
    return str(kolm.json("generate", PROMPT, "--max-tokens=4")["receipt"]["receipt_id"])


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk, which takes root")
def test_a_full_disk_loses_nothing_and_needs_nothing_but_room(tmp_path: Path, model: Path) -> None:
    services = local_services(tmp_path / "data", model)
    services.trust_own_keys()
    database, state = tmp_path / "database", services.data_dir / "generation"
    log = services.ledger()
    log = replace(log, more=(f"--database-url=sqlite:///{database}/ledger.sqlite3",))
    with (
        on_a_small_disk(log, database) as (ledger, ledger_disk),
        on_a_small_disk(services.generation(ledger), state) as (generation, own_disk),
    ):
        kolm = Kolm(Addresses(generation, ledger, ""), services.data_dir)
        made = [asked(kolm)]
        until(lambda: receipts(kolm) == made)

        filling = fill(ledger_disk)
        made.append(asked(kolm))
        until(lambda: kolm.json("status", code=5)["broken"] == ["the ledger cannot write"])
        assert kolm.json("status", code=5)["outbox"] == 1
        assert receipts(kolm) == made[:1]
        filling.unlink()
        until(lambda: receipts(kolm) == sorted(made))

        filling = fill(own_disk)
        assert kolm("generate", PROMPT, "--max-tokens=4").returncode == 5
        filling.unlink()
        until(lambda: kolm("generate", PROMPT, "--max-tokens=4").returncode == 0)
        until(lambda: len(receipts(kolm)) == 3)
        assert kolm("ledger", "verify").returncode == 0


ORIGIN = "kolm.local/ledger"


@contextmanager
def witnessed(services: LocalServices, policy: Path) -> Iterator[Kolm]:
    """The ledger of these services, which asks the witness of a policy all the time."""
    supervisor, plan = ForkingSupervisor(say), services.ledger()
    asking = replace(plan, more=(f"--witness-policy={policy}", "--witness-seconds=0.05"))
    try:
        yield Kolm(Addresses("127.0.0.1:1", supervisor.start(asking, PATIENCE), ""), services.data_dir)
    finally:
        supervisor.stop(10.0)


def append(kolm: Kolm, *numbers: int) -> None:
    """Receipts that a generation server of this ledger would have signed."""
    key = SigningKey.load(kolm.token_file.parents[1] / "keys/receipts.pem", "receipts")
    with LedgerClient.connect(kolm.addresses.ledger, token=kolm.token) as client:
        for number in numbers:
            client.append(sign_document(receipt(number), key).to_bytes())


def cosigned(kolm: Kolm) -> bool:
    return "kolm.local/witness" in kolm("ledger", "head", "--note").stdout


def test_a_log_whose_disk_was_restored_is_found_out_by_its_witness(tmp_path: Path, model: Path) -> None:
    services = local_services(tmp_path / "data", model)
    services.trust_own_keys()
    key = SigningKey.load(services.data_dir / "keys/log.pem", "log")
    log, policy, ready = (tmp_path / name for name in ("log.vkey", "policy", "witness.address"))
    log.write_text(VerifierKey(ORIGIN, key.public).to_text() + "\n")
    free = "127.0.0.1:0"
    settings = {"data_dir": tmp_path / "w", "logs": log, "listen": free, "ready_file": ready}
    witness = ForkingSupervisor(say)
    try:
        address = witness.start(Plan("witness", "services.witness", settings, free, ready), PATIENCE)
        vkey = (tmp_path / "w/vkey").read_text()
        policy.write_text(f"log {log.read_text()}witness w {vkey.strip()} http://{address}/\nquorum w\n")
        with witnessed(services, policy) as kolm:
            append(kolm, 0, 1)
            until(lambda: cosigned(kolm))
        shutil.copytree(services.data_dir, tmp_path / "backup")
        with witnessed(services, policy) as kolm:
            append(kolm, 2)
            until(lambda: cosigned(kolm))
        shutil.rmtree(services.data_dir)
        shutil.move(tmp_path / "backup", services.data_dir)
        with witnessed(services, policy) as kolm:
            append(kolm, 3)
            until(lambda: kolm.json("status", code=5)["broken"] == ["1 witnesses saw another history of the log"])
            assert not cosigned(kolm)
    finally:
        witness.stop(10.0)
    checked = kolm("ledger", "verify", "--depth=deep", f"--data-dir={services.data_dir}")
    assert checked.returncode == 0, checked.stderr  # nothing on this machine knows better
    with closing(sqlite3.connect(tmp_path / "w/witness.sqlite3")) as memory:
        (both,) = memory.execute("SELECT note, against FROM forks").fetchall()
    trees = [open_checkpoint(note, [key.public], ORIGIN) for note in both]
    assert [tree.size for tree in trees] == [3, 3]
    assert trees[0].root != trees[1].root
