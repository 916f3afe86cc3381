"""An erasure costs the same however many there were before it: counted in steps of the database, not in time."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from services.client import LedgerClient
from tests.access import token_of
from tests.append_stream import append_many
from tests.integration.ledger_service.conftest import Serve
from tests.integration.ledger_service.test_appending import wire_content
from tests.unit.ledger.builders import erasure, receipt_id, signed, signed_receipt

_MANY = 500
_STEPS = 10


class Steps:
    """The steps that SQLite has taken for the statements of all connections opened meanwhile, and how many those were.

    A step is an instruction of SQLite's machine: reading one row more takes several.
    """

    def __init__(self) -> None:
        self.taken = self.statements = 0

    def connected(self, connection: sqlite3.Connection, _record: object) -> None:
        connection.set_progress_handler(self._step, _STEPS)

    def executed(self, *_: object) -> None:
        self.statements += 1

    def _step(self) -> int:
        self.taken += _STEPS
        return 0

    def of(self, work: Callable[[], object]) -> tuple[int, int]:
        before = self.statements, self.taken
        work()
        return self.statements - before[0], self.taken - before[1]


@pytest.fixture
def steps() -> Iterator[Steps]:
    counted = Steps()
    event.listen(Engine, "connect", counted.connected)
    event.listen(Engine, "before_cursor_execute", counted.executed)
    yield counted
    event.remove(Engine, "connect", counted.connected)
    event.remove(Engine, "before_cursor_execute", counted.executed)


def test_the_five_hundredth_erasure_reads_no_more_than_the_tenth(
    steps: Steps, serve: Serve, principals: Path, operator_token: str
) -> None:
    """Through the server: the erasure that a tenant asks for, what is then read of it, and an append."""
    own = token_of(principals, "generate", tenant="acme")
    with (
        serve() as served,
        LedgerClient.connect(served.address, wait=60, token=own) as tenant,
        LedgerClient.connect(served.address, wait=60, token=operator_token) as operator,
        LedgerClient.connect(served.address, wait=60) as anybody,
    ):
        list(append_many(anybody, ((signed_receipt(number), wire_content(number)) for number in range(_MANY + 1))))
        list(append_many(operator, ((signed(erasure(number, number)), None) for number in range(9))))

        def erase(number: int) -> list[tuple[int, int]]:
            """The costs of the erasure of receipt `number`, of reading that, and of an append of somebody else's."""
            return [
                steps.of(lambda: tenant.erase_own(receipt_id(number))),
                steps.of(lambda: anybody.receipt(receipt_id(number))),
                steps.of(lambda: anybody.append(signed_receipt(_MANY + 10 + number))),
            ]

        tenth = erase(9)
        list(append_many(operator, ((signed(erasure(number, number)), None) for number in range(10, _MANY))))
        last = erase(_MANY)
        for before, now in zip(tenth, last, strict=True):
            assert now[0] <= before[0] + 2, (tenth, last)  # the proof of a larger tree may read a tile more
            assert now[1] <= 1.5 * before[1] + 200, (tenth, last)
