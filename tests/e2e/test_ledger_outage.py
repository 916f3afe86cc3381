"""The ledger is killed while a request is running: the receipts are kept, and appended once there is a ledger again."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from services.cli.up.local_services import OWNER, Addresses, principals_file, token_file
from services.cli.up.supervisor import Supervisor
from services.client import Finished, LedgerClient, Receipt, Request, Runtime, SamplingParams
from tests.e2e.command import ENVIRONMENT, KOLM, PATIENCE, Kolm, local_services, say, until
from tests.serving import known_port

CHOICES = 8


def test_a_ledger_killed_while_generating_gets_the_receipts_after_its_restart(tmp_path: Path, model: Path) -> None:
    services = local_services(tmp_path / "data", model)
    supervisor = Supervisor(say)
    services.trust_own_keys()
    try:
        with served_ledger(tmp_path, f"127.0.0.1:{known_port()}") as (address, process):
            generation = supervisor.start(services.generation(address), PATIENCE)
            kept = receipts_of_a_request_during(generation, services.data_dir, process.kill)
        kolm = Kolm(Addresses(generation, address, "127.0.0.1:1"), services.data_dir)
        assert all(receipt.pending and receipt.ledger_index is None for receipt in kept)
        assert kolm("ledger", "verify").returncode == 5
        with served_ledger(tmp_path, address), LedgerClient.connect(address, wait=PATIENCE, token=kolm.token) as ledger:
            until(lambda: len(list(ledger.receipts())) == CHOICES)
            assert {receipt.receipt_id for receipt in ledger.receipts()} == {receipt.receipt_id for receipt in kept}
            assert kolm("ledger", "verify").returncode == 0
    finally:
        supervisor.stop(10.0)


@contextmanager
def served_ledger(directory: Path, listen: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`kolm serve ledger`, answering; killed at the end."""
    ready = directory / "ledger.address"
    ready.unlink(missing_ok=True)
    data = directory / "data"
    flags = (f"--data-dir={data}", f"--listen={listen}", f"--ready-file={ready}")
    flags += (f"--principals={principals_file(data)}",)
    process = subprocess.Popen([*KOLM, "serve", "ledger", *flags], env=ENVIRONMENT)
    try:
        until(ready.exists)
        yield ready.read_text().strip(), process
    finally:
        process.kill()
        process.wait()


def receipts_of_a_request_during(address: str, data_dir: Path, mishap: Callable[[], None]) -> list[Receipt]:
    """The receipts of a long request, with something happening as soon as it runs."""
    sampling = SamplingParams(max_tokens=450, temperature=1.0, seed=5, n=CHOICES, ignore_eos=True)
    token = token_file(data_dir, OWNER).read_text().strip()
    with (
        Runtime.connect(address, token=token) as runtime,
        runtime.stream(Request(prompt="The ledger", sampling=sampling)) as events,
    ):
        next(events)
        mishap()
        finished = [event for event in events if isinstance(event, Finished)]
    return [event.receipt for event in finished if event.receipt is not None]
