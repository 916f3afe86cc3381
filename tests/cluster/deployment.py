"""kolm on several hosts: a database, a ledger, two generation servers, an auditor with an engine of its own."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from services.cli.ledger.receipts import envelope_document
from services.cli.up.local_services import Addresses, LocalServices, principals_file, token_file
from services.client.channel import Connection
from services.client.generation.completion import Completion, Receipt
from services.client.generation.request import Request, SamplingParams, SpecDecodeConfig
from services.client.generation.runtime import Runtime
from services.client.health import read_metrics
from services.client.ledger.ledger import LedgerClient
from tests.cluster.hosts import Network
from tests.e2e.command import Kolm, until
from tests.postgres import running_cluster, url_of

LEASE_SECONDS = 3.0
"""For which the ledger's word on halts counts here."""

PROMPT = "The ledger keeps one receipt for every request"
SERVERS = ("north", "south")


class Deployment:
    """Two generation servers, `north` and `south`, and their answers so far."""

    def __init__(self, network: Network, folder: Path, database: str, model: Path) -> None:
        self.network = network
        self._folder, self._database, self._model = folder / "data", database, model
        self._given: list[Receipt] = []
        LocalServices(self._folder, model).trust_own_keys()

    def start(self) -> None:
        self.start_ledger()
        for host in SERVERS:
            self._start_generation(host)
        own = (f"--data-dir={self._folder}", f"--model={self._model}", "--rate=1", "--draw-seconds=0.2")
        self.network.launch("auditor", "services.auditor", (*own, *self._calling("auditor")))
        for host in (*SERVERS, "auditor"):
            self.network.address(host)

    def start_ledger(self) -> None:
        flags = (f"--data-dir={self._folder}", f"--database-url={self._database}")
        principals = f"--principals={principals_file(self._folder)}"
        self.network.launch("ledger", "services.ledger", (*flags, principals))
        self.network.address("ledger")

    def _start_generation(self, host: str) -> None:
        flags = (
            *(f"--model={self._model}", f"--state-dir={self._folder}/{host}", f"--keys-dir={self._folder}/keys"),
            *(f"--trusted-keys={self._folder}/trusted", "--append-seconds=0.5", "--outbox-retry-seconds=0.2"),
            *("--halt-poll-seconds=0.2", f"--halt-lease-seconds={LEASE_SECONDS}"),
            *self._calling("generation"),
        )
        environment = {"KOLM_TEST_FAULT": str(self.fault(host))}
        self.network.launch(host, "tests.e2e.width_dependent", flags, environment)

    def _calling(self, service: str) -> tuple[str, ...]:
        """Flags of a service that calls the ledger, with its own token."""
        token = f"--token-file={token_file(self._folder, service)}"
        return (
            f"--ledger={self.network.hosts['ledger']}:50051",
            token,
            f"--principals={principals_file(self._folder)}",
        )

    def fault(self, host: str) -> Path:
        """While this file is there, that server's target depends on the width of a pass."""
        return self._folder / f"{host}.fault"

    def ask(self, host: str, method: str = "auto", choices: int = 2, prompt: str = PROMPT) -> Completion:
        """A server's answer; its receipts are remembered. Raises KolmError."""
        sampling = SamplingParams(max_tokens=24, temperature=0.8, seed=7, n=choices, ignore_eos=True)
        with Runtime.connect(f"{self.network.hosts[host]}:50051", token=self.kolm.token) as runtime:
            completion = runtime.serve(
                Request(prompt=prompt, sampling=sampling), spec_decode=SpecDecodeConfig(method=method)
            )
        self._given += [choice.receipt for choice in completion.choices if choice.receipt is not None]
        return completion

    def waiting(self, host: str) -> float:
        """Receipts that a server has not got rid of."""
        connection = Connection(f"{self.network.hosts[host]}:50051", self.kolm.token)
        try:
            return read_metrics(connection).total("kolm_outbox_pending")
        finally:
            connection.close()

    def logged(self) -> dict[str, int]:
        """How often each receipt is in the log, by id; from the entries themselves."""
        return dict(Counter(document["receipt_id"] for _, document in self._documents("receipt")))

    def issued(self, kind: str) -> list[dict[str, Any]]:
        """The documents of a kind, in the log's order."""
        return [document for _, document in self._documents(kind)]

    def _documents(self, kind: str) -> Iterator[tuple[int, dict[str, Any]]]:
        with LedgerClient.connect(self.kolm.addresses.ledger, token=self.kolm.token) as ledger:
            for entry in ledger.watch():
                document = envelope_document(entry.envelope.to_bytes())["document"]
                if document["type"] == f"kolm.{kind}.v1":
                    yield entry.index, document

    @property
    def kolm(self) -> Kolm:
        """The command line on this host."""
        hosts = self.network.hosts
        places = (f"{hosts[name]}:50051" for name in ("north", "ledger", "auditor"))
        return Kolm(Addresses(*places), self._folder, show_token=True)

    def is_whole(self) -> None:
        """Every receipt that a caller got is in the log once and at the index that the caller got, and nothing
        else is; and the log has only grown since the last look.
        """
        until(lambda: not any(self.waiting(host) for host in SERVERS))
        logged = self.logged()
        assert set(logged) == {receipt.receipt_id for receipt in self._given}
        assert set(logged.values()) == {1}
        places = {document["receipt_id"]: index for index, document in self._documents("receipt")}
        for receipt in self._given:
            assert receipt.ledger_index in (None, places[receipt.receipt_id])
        found = self.kolm("monitor", "--once", "--json")
        assert found.returncode in (0, 3), found.stderr
        assert {each["kind"] for each in json.loads(found.stdout)["findings"]} <= {"DEVIATION"}


@contextmanager
def deployed(network: Network, folder: Path, model: Path) -> Iterator[Deployment]:
    """Everything, answering."""
    listen = network.hosts["database"]
    around = network.within("database")
    with running_cluster(durable=True, listen=listen, network=f"{listen}/24", within=around) as socket:
        engine = create_engine(url_of(socket, "postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text("CREATE DATABASE kolm"))
        engine.dispose()
        deployment = Deployment(network, folder, f"postgresql+psycopg://kolm@{listen}/kolm", model)
        deployment.start()
        yield deployment
        network.stop()  # before its database
