"""Generation and ledger are stopped and killed at random moments under load: no receipt is lost, none is doubled."""

import random
import signal
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from services.cli.up.local_services import OWNER, token_file
from services.cli.up.supervisor import Plan
from services.client.errors import Cancelled, Internal, Unavailable
from services.client.generation.completion import Finished, Started
from services.client.generation.request import Request, SamplingParams
from services.client.generation.runtime import Runtime
from services.client.ledger.ledger import LedgerClient
from tests.e2e.command import PATIENCE, local_services, own_environment, until
from tests.forked import Forked
from tests.serving import known_port

CALLERS = 4
MISHAPS = (
    ("generation", signal.SIGKILL),
    ("ledger", signal.SIGKILL),
    ("generation", signal.SIGTERM),
    ("ledger", signal.SIGTERM),
)


class Service:
    """A process that comes back to its address."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.start()

    def start(self) -> None:
        self._plan.ready_file.unlink(missing_ok=True)
        environment = {**own_environment(), **self._plan.environment}
        self.process = Forked(self._plan.module, *self._plan.flags, environment=environment)
        until(lambda: self._plan.ready_file.exists() or self.process.poll() is not None)
        assert self.process.poll() is None

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE)


@dataclass
class Caller:
    """Asks until it is stopped, and again if an answer is missing; keeps promises and answers."""

    address: str
    token: str
    name: str
    promised: list[str] = field(default_factory=list)  # request ids
    given: dict[str, str] = field(default_factory=dict)  # receipts by request id

    def ask(self, stop: threading.Event) -> None:
        with Runtime.connect(self.address, token=self.token) as runtime:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    self._once(runtime, f"{self.name}-{number}")
                except (Unavailable, Cancelled, Internal) as error:  # Internal: what gRPC makes of a cut connection
                    stop.wait(error.retry_after or 0.05)

    def _once(self, runtime: Runtime, request_id: str) -> None:
        sampling = SamplingParams(max_tokens=60, temperature=1.0, seed=1, ignore_eos=True)
        request = Request(prompt="The ledger", request_id=request_id, tenant=self.name, sampling=sampling)
        with runtime.stream(request, timeout=PATIENCE) as events:
            for event in events:
                if isinstance(event, Started):
                    self.promised.append(request_id)
                if isinstance(event, Finished) and event.receipt is not None:
                    self.given[request_id] = event.receipt.receipt_id


def test_no_receipt_is_lost_or_doubled_by_restarts_under_load(tmp_path: Path, model: Path) -> None:
    chance = random.Random(7)
    services = replace(
        local_services(tmp_path / "data", model),
        generation_port=int(known_port()), ledger_port=int(known_port()),
        shared_settings={"log_level": "error"},
        generation_settings={"grace_seconds": 0.2, "halt_poll_seconds": 0.2},
    )  # fmt: skip
    services.trust_own_keys()
    token = token_file(services.data_dir, OWNER).read_text().strip()
    ledger_address = f"127.0.0.1:{services.ledger_port}"
    running = {"ledger": Service(services.ledger()), "generation": Service(services.generation(ledger_address))}
    callers = [Caller(f"127.0.0.1:{services.generation_port}", token, f"t{n}") for n in range(CALLERS)]
    stop = threading.Event()
    threads = [threading.Thread(target=caller.ask, args=(stop,)) for caller in callers]
    try:
        for thread in threads:
            thread.start()
        for name, number in MISHAPS:
            served = sum(len(caller.given) for caller in callers)
            until(lambda served=served: sum(len(caller.given) for caller in callers) >= served + CALLERS)
            time.sleep(chance.random() / 10)
            code = running[name].end(number)
            assert code == (0 if number == signal.SIGTERM else -number)
            running[name].start()
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        promised = {request_id for caller in callers for request_id in caller.promised}
        with LedgerClient.connect(ledger_address, wait=PATIENCE, token=token) as ledger:
            until(lambda: promised <= {each.document.request_id for each in ledger.receipts()})
            assert running["generation"].end(signal.SIGTERM) == 0
            receipts = [(each.document.request_id, each.receipt_id) for each in ledger.receipts()]
    finally:
        stop.set()
        for service in running.values():
            service.process.kill()
            service.process.wait()
    logged = dict(receipts)
    assert len(logged) == len(receipts)  # one of each request
    for caller in callers:
        assert caller.given.items() <= logged.items()
