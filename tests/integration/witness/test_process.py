"""The witness as a process: it makes its key, serves, stops when told to, and remembers."""

from __future__ import annotations

import http.client
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ledger.keys.note import COSIGNATURE, Note, VerifierKey
from ledger.witness.cosignature import cosigners
from tests.processes import PATIENCE, started
from tests.unit.ledger.witness.test_witness import LOG, Log


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a witness that runs while inside, and ends with exit code 0 on SIGTERM."""
    flags = ["--data-dir", str(folder / "w"), "--logs", str(folder / "logs"), "--listen", "127.0.0.1:0"]
    command = [sys.executable, "-m", "services.witness", *flags]
    with started(command, folder / "ready") as (process, address):
        yield address
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
        assert (process.returncode, "witness stopped" in said) == (0, True), said


def ask(address: str, body: bytes) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection(address)) as connection:
        connection.request("POST", "/add-checkpoint", body)
        answer = connection.getresponse()
        return answer.status, answer.read()


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


def test_a_witness_without_a_log_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("# none yet\n")
    for logs, said in ((tmp_path / "logs", "names no log"), (tmp_path / "none", "No such file")):
        flags = ["--data-dir", str(tmp_path / "w"), "--logs", str(logs), "--listen", "127.0.0.1:0"]
        command = [sys.executable, "-m", "services.witness", *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
