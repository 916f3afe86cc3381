"""EraseContent over the wire: who may, what is gone, what still holds, and what the five hundredth one costs."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from ledger.audit.log_verification import verify_log
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.receipt_filter import ReceiptFilter
from services.client import LedgerClient
from services.client.errors import AlreadyExists, InvalidArgument, PermissionDenied, Unauthenticated
from services.client.ledger.verified import VerifiedLedger
from services.ledger.settings import LedgerSettings
from tests.access import token_of
from tests.append_stream import append_many
from tests.integration.ledger_service.conftest import Serve
from tests.integration.ledger_service.test_appending import wire_content
from tests.unit.ledger.builders import content, erasure, receipt_id, signed, signed_receipt


def fill(ledger: LedgerClient) -> None:
    for number in range(3):
        ledger.append(signed_receipt(number), wire_content(number))


def test_an_erasure_takes_content_and_salts_and_leaves_every_proof(
    ledger: LedgerClient, operator: LedgerClient, auditor: LedgerClient, settings: LedgerSettings, tmp_path: Path
) -> None:
    fill(ledger)
    trusted = TrustedKeys.load(settings.trusted_directory)
    before = VerifiedLedger(ledger, trusted)
    rows = list(before.receipts(ReceiptFilter(), complete=True))
    erased = VerifiedLedger(operator, trusted).erase(signed(erasure(1, 1)))
    assert erased.index == 3
    assert [_kept(auditor, number) for number in range(3)] == [True, False, True]
    assert not any(content(1).prompt_salt in path.read_bytes() for path in tmp_path.glob("ledger.sqlite3*"))
    # The same client, which remembers the head from before: everything that was proven still is.
    assert list(before.receipts(ReceiptFilter(), complete=True)) == rows
    report = verify_log((entry.entry for entry in ledger.watch(0)), ledger.checkpoint().note, trusted)
    assert (report.ok, report.kinds["erasure"]) == (True, 1)
    assert ledger.entry(3).kind == "erasure"


def _kept(auditor: LedgerClient, number: int) -> bool:
    return auditor.receipt(receipt_id(number), include_content=True).content is not None


def test_erasing_twice_is_one_entry_and_content_does_not_come_back(
    ledger: LedgerClient, operator: LedgerClient, auditor: LedgerClient
) -> None:
    fill(ledger)
    first = operator.erase(signed(erasure(1, 1)))
    assert operator.erase(signed(erasure(1, 1))).index == first.index
    assert ledger.append(signed_receipt(1), wire_content(1)).index == 1
    assert auditor.receipt(receipt_id(1), include_content=True).content is None
    assert ledger.checkpoint().tree_size == 4


def test_a_second_erasure_is_refused_and_named(
    ledger: LedgerClient, operator: LedgerClient, auditor: LedgerClient
) -> None:
    fill(ledger)
    assert operator.erase(signed(erasure(1, 1))).index == 3
    again = signed(erasure(1, 1, reason="another reason"))
    for call in (operator.erase, operator.append):
        with pytest.raises(AlreadyExists):
            call(again)
    assert operator.erase(signed(erasure(2, 2))).index == 4
    assert ledger.checkpoint().tree_size == 5


def test_what_became_of_content_is_said_to_everybody(ledger: LedgerClient, operator: LedgerClient) -> None:
    fill(ledger)
    ledger.append(signed_receipt(3))
    operator.erase(signed(erasure(1, 1)))
    told = [(found.content_state, found.erasure_index) for found in map(ledger.receipt, map(receipt_id, range(4)))]
    assert told == [("KEPT", None), ("ERASED", 4), ("KEPT", None), ("NEVER_GIVEN", None)]


def test_only_operators_erase(ledger: LedgerClient, auditor: LedgerClient) -> None:
    fill(ledger)
    for somebody in (ledger, auditor):
        with pytest.raises((PermissionDenied, Unauthenticated)):
            somebody.erase(signed(erasure(1, 1)))
        with pytest.raises(PermissionDenied):
            somebody.append(signed(erasure(1, 1)))
    assert _kept(auditor, 1)


@pytest.mark.parametrize(
    ("envelope", "why"),
    [
        (b"junk", "JSON"),
        (signed_receipt(0), "expected a kolm.erasure.v1 document, got a receipt"),
        (signed(erasure(0, 1)), "receipt_index"),
        (signed(erasure(99, 1)), "receipt_index"),
    ],
)
def test_anything_but_an_erasure_of_a_receipt_that_is_there_is_refused(
    ledger: LedgerClient, operator: LedgerClient, envelope: bytes, why: str
) -> None:
    fill(ledger)
    with pytest.raises(InvalidArgument, match=why) as caught:
        operator.erase(envelope)
    assert caught.value.fields == ("envelope",)
    assert ledger.checkpoint().tree_size == 3


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
