"""A witness beside a ledger."""

import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ledger.keys.ed25519 import SigningKey
from ledger.keys.note import COSIGNATURE, Note, VerifierKey
from ledger.witness.cosignature import cosigners
from ledger.witness.tlog_policy import Policy, PolicyGroup, PolicyLog, PolicyWitness
from services.client.errors import NotFound
from services.client.ledger.ledger import LedgerClient
from tests.access import open_access_file, trust_log_in
from tests.fakes.dripping_server import dripping
from tests.forked import ran
from tests.integration.monitor.processes import until
from tests.serving import PATIENCE, fetched, started
from tests.unit.ledger.builders import KEYS, ORIGIN, receipt, signed_receipt
from tests.unit.ledger.witness.test_witness import LOG, Log


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a witness that runs while inside, and ends with exit code 0 on SIGTERM."""
    flags = ["--data-dir", str(folder / "w"), "--logs", str(folder / "logs"), "--listen", "127.0.0.1:0"]
    with started("services.witness", flags, folder / "ready") as (process, address):
        yield address
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, "witness stopped" in errors) == (0, True), errors


def ask(address: str, body: bytes) -> tuple[int, bytes]:
    status, _, answer = fetched(address, "/add-checkpoint", body)
    return status, answer


def test_a_witness_remembers_across_restarts(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text(f"# the logs that we watch\n{LOG.to_text()}\n")
    log = Log()
    with served(tmp_path) as address:
        status, line = ask(address, log.request(0, 5))
    own = VerifierKey.from_text((tmp_path / "w/vkey").read_text().strip())
    assert (status, own.kind, own.name) == (200, COSIGNATURE, "kolm.local/witness")
    assert own in cosigners(Note.from_bytes(log.checkpoint(5) + line), [own])
    assert stat.S_IMODE((tmp_path / "w/witness.pem").stat().st_mode) == 0o600
    with served(tmp_path) as address:
        assert ask(address, log.request(0, 5)) == (409, b"5\n")
        assert ask(address, log.request(5, 9))[0] == 200


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"# none yet\n", "names no log"), (None, "No such file"), (b"key\n", "--logs: "), (b"\xff\n", "--logs: ")],
)
def test_a_witness_without_a_log_does_not_start(content: bytes | None, problem: str, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    if content is not None:
        logs.write_bytes(content)
    flags = ["--data-dir", str(tmp_path / "w"), "--logs", str(logs), "--listen", "127.0.0.1:0"]
    code, error = ran("services.witness", *flags)
    assert (code, problem in error, "Traceback" in error) == (1, True, False), error


def test_witnesses_that_hang_cost_neither_a_cosignature_nor_a_reader_nor_the_end(tmp_path: Path) -> None:
    """More of them than there are threads in the pool that the ledger's reads share, each for longer than the test."""
    data, good = tmp_path / "log", tmp_path / "good"
    trust_log_in(data)
    KEYS["receipts"].publish(data / "trusted")
    origin = VerifierKey(ORIGIN, SigningKey.load_or_create(data / "keys/log.pem", "log").public)
    good.mkdir()
    (good / "logs").write_text(origin.to_text() + "\n")
    with served(good) as address, dripping() as hung:
        own = VerifierKey.from_text((good / "w/vkey").read_text().strip())
        names = [f"hung{number}" for number in range(40)]
        keys = [VerifierKey(f"{name}.example/w", SigningKey.generate("witness").public, COSIGNATURE) for name in names]
        places = [f"http://127.0.0.1:{hung.port}/{name}" for name in names]
        witnesses = (PolicyWitness("good", own, f"http://{address}/"), *map(PolicyWitness, names, keys, places))
        group = PolicyGroup("any", 1, tuple(each.name for each in witnesses))
        policy = Policy((PolicyLog(origin),), witnesses, (group,), "any")
        (tmp_path / "policy").write_bytes(policy.to_bytes())
        flags = ["--listen", "127.0.0.1:0", "--data-dir", str(data), "--origin", ORIGIN]
        flags += ["--principals", str(open_access_file()), "--witness-policy", str(tmp_path / "policy")]
        flags += ["--witness-seconds", "0.05", "--witness-timeout", str(10 * PATIENCE)]
        with (
            started("services.ledger", flags, tmp_path / "ready") as (process, ledger),
            LedgerClient.connect(ledger) as client,
        ):
            for number in range(3):
                appended = client.append(signed_receipt(number))
                until(lambda: _witnessed(client) == client.checkpoint().tree_size, process)
                assert client.receipt(receipt(number).receipt_id).receipt.index == appended.index
            until(lambda: hung.open == len(names), process)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, errors


def _witnessed(client: LedgerClient) -> int | None:
    try:
        return client.checkpoint(witnessed=True).tree_size
    except NotFound:
        return None
