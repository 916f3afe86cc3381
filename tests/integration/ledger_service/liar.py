"""A ledger service that lies where a test asks it to, on a port of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.client.ledger.ledger import LedgerClient
from services.ledger.settings import LedgerSettings
from tests.access import trust_log
from tests.integration.ledger_service.serving_ledger import serving_ledger
from tests.unit.ledger.builders import KEYS, ORIGIN

Lie = Callable[[Any], None]


class Liar:
    """Answers as the real servicer does; `lies` change the answers of single methods on their way out, `mishearings`
    the requests on their way in, so that a true answer to another question comes back.
    """

    client: LedgerClient

    def __init__(self, honest: Any) -> None:
        self._honest = honest
        self.lies: dict[str, Lie] = {}
        self.mishearings: dict[str, Lie] = {}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._honest, name)
        if name in ("AppendEntries", "WatchEntries", "ExportBundle"):
            return method

        async def answer(request: Any, context: Any) -> Any:
            self.mishearings.get(name, lambda _: None)(request)
            response = await method(request, context)
            self.lies.get(name, lambda _: None)(response)
            return response

        return answer


def ledger_settings(folder: Path) -> LedgerSettings:
    """A ledger in `folder` that trusts its own key and those of the tests."""
    for role in ("receipts", "auditor", "operator", "publisher"):
        KEYS[role].publish(folder / "trusted")
    return trust_log(LedgerSettings(data_dir=folder, origin=ORIGIN))


@contextmanager
def lying(settings: LedgerSettings) -> Iterator[Liar]:
    with (
        serving_ledger(settings, between=Liar) as (served, liar),
        LedgerClient.connect(served.address, wait=60) as liar.client,
    ):
        yield liar
