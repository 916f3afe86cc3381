"""A ledger that cannot keep up refuses, says for how long, and forgets nobody whom it did not refuse."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from services.client import LedgerClient
from services.client.errors import ResourceExhausted
from services.ledger.settings import LedgerSettings
from tests.integration.ledger_service.conftest import Serve
from tests.unit.ledger.builders import ORIGIN, content, signed_receipt

QUEUE = 3


@pytest.fixture
def settings(settings: LedgerSettings) -> LedgerSettings:
    return LedgerSettings(data_dir=settings.data_dir, origin=ORIGIN, queue_size=QUEUE, batch_size=1)


@contextmanager
def held(database: Path) -> Iterator[None]:
    """Somebody else writes to the file, and the ledger's writer has to wait."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def test_a_full_queue_refuses_with_the_time_to_come_back_and_nothing_is_lost(
    serve: Serve, settings: LedgerSettings
) -> None:
    with serve() as served, LedgerClient.connect(served.address, wait=60) as client:
        client.append(signed_receipt(0), content(0))
        indexes: dict[int, int] = {}
        refused: dict[int, ResourceExhausted] = {}

        def append(number: int) -> None:
            try:
                indexes[number] = client.append(signed_receipt(number)).index
            except ResourceExhausted as error:
                refused[number] = error
                full.set()

        full = threading.Event()
        callers = [threading.Thread(target=append, args=(number,)) for number in range(1, 3 * QUEUE)]
        with held(settings.data_dir / "ledger.sqlite3"):
            for caller in callers:
                caller.start()
            assert full.wait(timeout=8)
        for caller in callers:
            caller.join()
        assert all(error.retry_after and 0 < error.retry_after <= 5 for error in refused.values())
        assert len(indexes) >= QUEUE
        assert {*indexes, *refused} == set(range(1, 3 * QUEUE))
        for number in refused:
            indexes[number] = client.append(signed_receipt(number)).index
        assert sorted(indexes.values()) == list(range(1, 3 * QUEUE))
