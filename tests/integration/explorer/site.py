"""A ledger service with a small log, and the explorer over it, both on ports of their own."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from ledger.documents.receipt import SpecDecode
from ledger.encoding.text_forms import cid
from ledger.keys.trusted_keys import TrustedKeys
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.verified import VerifiedLedger
from services.explorer.app import explorer_app
from services.explorer.pages import Source
from tests.integration.ledger_service.liar import Liar, Lie, ledger_settings, lying
from tests.mutations import replace
from tests.unit.ledger.builders import OFF, ORIGIN, halt, policy, receipt, receipt_id, signed, verdict

HEADS = (cid(b"first head"), cid(b"second head"))
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> \u202egnitirw {{ 7 * 7 }}"
RECEIPTS = 60
HOSTILE_RECEIPT = RECEIPTS - 1


@dataclass(frozen=True)
class Site:
    """The explorer's address, and its ledger."""

    url: str
    liar: Liar
    client: LedgerClient
    source: Source

    @contextmanager
    def lying(self, **lies: Lie) -> Iterator[None]:
        self.liar.lies = lies
        try:
            yield
        finally:
            self.liar.lies = {}


@contextmanager
def running_site(folder: Path) -> Iterator[Site]:
    with lying(ledger_settings(folder)) as liar:
        fill(liar.client)
        keys = TrustedKeys.load(folder / "trusted")
        source = Source(liar.client, VerifiedLedger(liar.client, keys, origin=ORIGIN), keys, ORIGIN)
        with explored(source) as url:
            yield Site(url, liar, liar.client, source)


@contextmanager
def explored(source: Source) -> Iterator[str]:
    """The address of an explorer over `source`."""
    server = uvicorn.Server(uvicorn.Config(explorer_app(source), port=0, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def fill(client: LedgerClient) -> None:
    """RECEIPTS receipts of two tenants and four ways to decode, verdicts on some, a halt."""
    documents: list[Any] = [policy(0.5)]
    documents += [receipt(number, **_variation(number)) for number in range(RECEIPTS)]
    whose = ({"verification": "decode", "replayed_by": "server"}, {"verification": "prefill", "replayed_by": "auditor"})
    documents += [
        verdict(1 + number, number, tokens_compared=documents[1 + number].output.tokens, **whose[number % 4 // 2])
        for number in range(0, 20, 2)
    ]
    documents += [verdict(22, 21, "UNREPLAYABLE"), verdict(26, 25, "DEVIATION"), halt(len(documents) + 1)]
    for place, document in enumerate(documents):
        assert client.append(signed(document)).index == place


def id_of(number: int) -> str:
    return receipt_id(number)


def _variation(number: int) -> dict[str, Any]:
    tenant = HOSTILE if number == HOSTILE_RECEIPT else ("acme", "globex")[number % 2]
    method = ("lookahead", "eagle3", "eagle3", "off")[number % 4]
    head = HEADS[number // 4 % 2] if method == "eagle3" else None
    if method == "off":
        return {"tenant": tenant, "profile_proven": False, "spec_decode": OFF}
    accepted = 20 + number * 7 % 15
    return {
        "tenant": tenant,
        "profile_proven": None if number % 4 == 1 else True,
        "output": replace(receipt(number).output, tokens=accepted + 2),
        "spec_decode": SpecDecode(
            method,
            "auto",
            40,
            accepted,
            2,
            head_cid=head,
            k=4,
            acceptance_rate=accepted / 40,
            mean_acceptance_length=(accepted + 2) / 2,
            wall_clock_speedup=0.5 + accepted / 100,
            speedup_basis="replayed",
        ),
    }
