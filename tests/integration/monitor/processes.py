"""A ledger, an explorer, a monitor and a receiver of webhooks, each a process or a server of its own."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.client.ledger.ledger import LedgerClient
from tests.access import open_access_file, trust_log_in
from tests.cli import kolm
from tests.fakes.http_server import QuietHandler, handled_by
from tests.forked import Forked
from tests.serving import PATIENCE, started
from tests.unit.ledger.builders import KEYS, ORIGIN


@dataclass(frozen=True)
class Ledger:
    """A ledger process, and a client of it."""

    process: Forked
    address: str
    client: LedgerClient


@contextmanager
def ledger(data: Path) -> Iterator[Ledger]:
    """Ends in order, so that the data directory can be copied."""
    trust_log_in(data)
    for role in ("receipts", "auditor", "operator", "publisher"):
        KEYS[role].publish(data / "trusted")
    flags = ["--listen", "127.0.0.1:0", "--data-dir", str(data), "--origin", ORIGIN]
    flags += ["--principals", str(open_access_file())]
    with started("services.ledger", flags, data / "ledger.ready") as (process, address):
        with LedgerClient.connect(address, wait=60) as client:
            yield Ledger(process, address, client)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


@contextmanager
def explorer(data: Path, served: Ledger) -> Iterator[str]:
    """The URL of an explorer over a ledger."""
    flags = ["--ledger", served.address, "--trusted-keys", str(data / "trusted"), "--listen", "127.0.0.1:0"]
    with started("services.explorer", flags, data / "explorer.ready") as (_, address):
        yield f"http://{address}"


def monitor(data: Path, *arguments: str) -> tuple[int, str]:
    """Look once, with a log's keys and state in `data`; the exit code and stderr."""
    code, _, errors = kolm("monitor", "--once", *arguments, f"--data-dir={data}")
    return code, errors


def looked(data: Path, *arguments: str) -> dict[str, Any]:
    """The output of one look with --json."""
    code, shown, errors = kolm("monitor", "--once", "--json", *arguments, f"--data-dir={data}")
    answer: dict[str, Any] = json.loads(shown)
    assert code == (0 if answer["ok"] else 3), errors
    return answer


def following(data: Path, *arguments: str) -> Forked:
    """A monitor that goes on looking, several times a second. Killed (SIGKILL) at the end."""
    return Forked("services.cli", "monitor", "--every=1s", *arguments, f"--data-dir={data}")


@dataclass
class Receiver:
    """The calls that a webhook got. The first `refusals` calls are answered 500."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    refusals: int = 0

    def got(self, kind: str) -> list[dict[str, Any]]:
        return [body for body in self.bodies if body["kind"] == kind]


@contextmanager
def receiver() -> Iterator[Receiver]:
    took = Receiver()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if took.refusals:
                took.refusals -= 1
                self.send_response(500)
            else:
                took.bodies.append(body)
                self.send_response(204)
            self.end_headers()

    with handled_by(Handler) as port:
        took.url = f"http://127.0.0.1:{port}/hook?of=kolm"
        yield took


def until(condition: Any, process: Forked | None = None) -> None:
    """Ask again until the answer is yes."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process is None or process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.05)
