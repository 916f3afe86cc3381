"""Contents erased over the wire, by an operator, a tenant or a policy: its effect, its limits and its cost."""

import asyncio
import io
import json
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from ledger.audit.log_verification import verify_log
from ledger.bundle.folder import BundleFolder, unpack
from ledger.bundle.report import Trust
from ledger.bundle.verification import verify_bundle
from ledger.errors import FormatError
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.receipt_filter import ReceiptFilter
from services.client.errors import AlreadyExists, DataLoss, InvalidArgument, PermissionDenied, Unauthenticated
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.verified import VerifiedLedger
from services.ledger import retention_sweeper
from services.ledger.retention_sweeper import RetentionSweeper
from services.ledger.servicer import LedgerServicer
from services.ledger.settings import LedgerSettings
from services.runtime.access import Access
from services.runtime.credentials import ROLES
from tests.access import token_of
from tests.append_stream import append_many
from tests.integration.ledger_service.conftest import Serve
from tests.integration.ledger_service.serving_ledger import serving_ledger
from tests.serving import Served
from tests.unit.ledger.builders import START, content, erasure, expiry, receipt_id, retention, signed, signed_receipt


def fill(ledger: LedgerClient) -> None:
    for number in range(3):
        ledger.append(signed_receipt(number), content(number))


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
    assert ledger.append(signed_receipt(1), content(1)).index == 1
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


def test_every_caller_learns_the_state_of_a_content(ledger: LedgerClient, operator: LedgerClient) -> None:
    fill(ledger)
    ledger.append(signed_receipt(3))
    operator.erase(signed(erasure(1, 1)))
    told = [(found.content_state, found.erasure_index) for found in map(ledger.receipt, map(receipt_id, range(4)))]
    assert told == [("KEPT", None), ("ERASED", 4), ("KEPT", None), ("NEVER_GIVEN", None)]


def test_a_damaged_content_costs_no_proof_and_can_be_erased(
    ledger: LedgerClient,
    operator: LedgerClient,
    auditor: LedgerClient,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(ledger)
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as file, file:
        file.execute("UPDATE contents SET sealed = zeroblob(length(sealed)) WHERE receipt_index = 1")
    with pytest.raises(DataLoss, check=lambda error: error.reason == "CONTENT_DAMAGED"):
        _kept(auditor, 1)
    assert "services.ledger.servicer" not in {record.name for record in caplog.records}  # the database can be read
    assert ledger.receipt(receipt_id(1)).content_state == "KEPT"
    with auditor.export(include_content=True) as pieces, tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as bundle:
        contents = bundle.extractfile("content/000000000000.jsonl")
        assert contents is not None
        assert [json.loads(line)["index"] for line in contents] == [0, 2]
    assert operator.erase(signed(erasure(1, 1))).index == 3
    assert (ledger.receipt(receipt_id(1)).content_state, _kept(auditor, 1)) == ("ERASED", False)


def test_only_operators_erase(ledger: LedgerClient, auditor: LedgerClient) -> None:
    fill(ledger)
    for client in (ledger, auditor):
        with pytest.raises((PermissionDenied, Unauthenticated)):
            client.erase(signed(erasure(1, 1)))
        with pytest.raises(PermissionDenied):
            client.append(signed(erasure(1, 1)))
    assert _kept(auditor, 1)


@pytest.mark.parametrize(("envelope", "why"), [
    (b"junk", "JSON"), (signed_receipt(0), "expected a kolm.erasure.v1 document, got a receipt"),
    (signed(erasure(0, 1)), "receipt_index"), (signed(erasure(2, 0)), "receipt_index"),
    (signed(erasure(99, 1)), "receipt_index"),
])  # fmt: skip
def test_anything_but_an_erasure_of_a_receipt_that_is_there_is_refused_and_erases_nothing(
    ledger: LedgerClient, operator: LedgerClient, auditor: LedgerClient, envelope: bytes, why: str
) -> None:
    fill(ledger)
    with pytest.raises(InvalidArgument, match=why) as caught:
        operator.erase(envelope)
    assert caught.value.fields == ("envelope",)
    assert ledger.checkpoint().tree_size == 3
    assert [_kept(auditor, number) for number in range(3)] == [True] * 3


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
        connection.set_trace_callback(self._statement)

    def _statement(self, _: str) -> None:
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
    yield counted
    event.remove(Engine, "connect", counted.connected)


def test_the_five_hundredth_erasure_reads_no_more_than_the_tenth(
    steps: Steps, serve: Serve, principals: Path, operator_token: str
) -> None:
    """Through the server: the erasure that a tenant asks for, reads after it, and an append."""
    own = token_of(principals, "generate", tenant="acme")
    with (
        serve() as served,
        LedgerClient.connect(served.address, wait=60, token=own) as tenant,
        LedgerClient.connect(served.address, wait=60, token=operator_token) as operator,
        LedgerClient.connect(served.address, wait=60) as reader,
    ):
        list(append_many(reader, ((signed_receipt(number), content(number)) for number in range(_MANY + 1))))
        list(append_many(operator, ((signed(erasure(number, number)), None) for number in range(9))))

        def erase(number: int) -> list[tuple[int, int]]:
            """The costs of the erasure of receipt `number`, of reading that, and of another caller's append."""
            return [
                steps.of(lambda: tenant.erase_own(receipt_id(number))),
                steps.of(lambda: reader.receipt(receipt_id(number))),
                steps.of(lambda: reader.append(signed_receipt(_MANY + 10 + number))),
            ]

        tenth = erase(9)
        list(append_many(operator, ((signed(erasure(number, number)), None) for number in range(10, _MANY))))
        reader.append(signed_receipt(_MANY + 9))  # any next write deletes the rows that those have emptied
        last = erase(_MANY)
        for before, now in zip(tenth, last, strict=True):
            assert now[0] <= before[0] + 2, (tenth, last)  # the proof of a larger tree may read a tile more
            assert now[1] <= 1.5 * before[1] + 200, (tenth, last)


@dataclass
class Kept:
    """A served ledger, whose clock is `days` after the first receipt."""

    ledger: LedgerClient
    auditor: LedgerClient
    servicer: LedgerServicer
    served: Served
    days: float = 0.0

    def sweep(self) -> None:
        clock = START + timedelta(days=self.days)
        sweeper = RetentionSweeper(self.servicer.reader, self.servicer.append_own, lambda: clock, 1.0)
        self.served.on_loop(sweeper.sweep)

    def contents(self, count: int) -> list[bool]:
        shown = (self.auditor.receipt(receipt_id(number), include_content=True) for number in range(count))
        return [each.content is not None for each in shown]


@pytest.fixture
def kept(settings: LedgerSettings, principals: Path) -> Iterator[Kept]:
    with (
        serving_ledger(settings, Access(principals)) as (served, servicer),
        LedgerClient.connect(served.address, wait=60, token=token_of(principals, *ROLES)) as ledger,
        LedgerClient.connect(served.address, wait=60, token=token_of(principals, "audit")) as auditor,
    ):
        yield Kept(ledger, auditor, servicer, served)


def test_contents_are_kept_as_long_as_the_newest_policy_says(
    kept: Kept, settings: LedgerSettings, tmp_path: Path
) -> None:
    for number, tenant in enumerate(("acme", "zeta", "acme", "other")):
        kept.ledger.append(signed_receipt(number, tenant=tenant), content(number))
    kept.sweep()
    assert kept.ledger.checkpoint().tree_size == 4  # no policy, no entry
    for policy in (retention(30), retention(7, "acme"), retention(None, "zeta")):
        kept.ledger.append(signed(policy))
    kept.days = 6
    kept.sweep()
    assert kept.contents(4) == [True] * 4
    kept.days = 8
    kept.sweep()
    assert kept.contents(4) == [False, True, False, True]
    kept.sweep()
    assert kept.ledger.checkpoint().tree_size == 8  # nothing is erased twice
    kept.days = 40
    kept.sweep()
    assert kept.contents(4) == [False, True, False, False]

    shown = kept.ledger.receipt(receipt_id(2))
    assert (shown.content_state, shown.erasure_index) == ("ERASED", 7)
    assert kept.ledger.receipt(receipt_id(3)).erasure_index == 8
    assert kept.ledger.receipt(receipt_id(1)).content_state == "KEPT"
    assert not any(content(2).prompt_salt in path.read_bytes() for path in tmp_path.glob("ledger.sqlite3*"))
    trusted = TrustedKeys.load(settings.trusted_directory)
    report = verify_log((entry.entry for entry in kept.ledger.watch(0)), kept.ledger.checkpoint().note, trusted)
    assert (report.problem, report.kinds["retention"], report.kinds["expiry"]) == (None, 3, 2)


def test_many_contents_are_erased_in_entries_of_bounded_size(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_sweeper, "MOST_CONTENTS", 2)
    for number in range(5):
        kept.ledger.append(signed_receipt(number), content(number))
    kept.ledger.append(signed(retention(1)))
    kept.days = 2
    kept.sweep()
    assert kept.contents(5) == [False] * 5
    assert [entry.kind for entry in kept.ledger.watch(6)] == ["expiry"] * 3


def test_a_choice_of_receipts_brings_the_policies_along(kept: Kept, settings: LedgerSettings, tmp_path: Path) -> None:
    for number in range(3):
        kept.ledger.append(signed_receipt(number), content(number))
    kept.ledger.append(signed(retention(1)))
    kept.days = 2
    kept.sweep()
    archive, folder = tmp_path / "bundle.tar.gz", tmp_path / "bundle"
    with archive.open("wb") as file, kept.ledger.export([receipt_id(1)]) as pieces:
        file.writelines(pieces)
    folder.mkdir()
    unpack(archive, folder)
    report = verify_bundle(BundleFolder(folder), Trust(TrustedKeys.load(settings.trusted_directory)))
    assert [check.detail for check in report.checks if check.passed is False] == []
    assert report.kinds == {"receipt": 1, "retention": 1, "expiry": 1}


def test_only_operators_set_policies_and_only_the_log_erases_by_them(kept: Kept, settings: LedgerSettings) -> None:
    with LedgerClient.connect(kept.served.address, wait=60) as stranger, pytest.raises(PermissionDenied):
        stranger.append(signed(retention(1)))
    kept.ledger.append(signed_receipt(0), content(0))
    with pytest.raises(InvalidArgument):  # the builders' log is not this one
        kept.ledger.append(signed(expiry(1, 1)))


def test_the_log_itself_cannot_erase_beyond_a_policy(kept: Kept) -> None:
    kept.ledger.append(signed_receipt(0), content(0))
    kept.ledger.append(signed(retention(30)))
    for wrong in (expiry(1, 1, 29), expiry(0, 1), expiry(1, 7)):
        with pytest.raises(FormatError):
            kept.served.on_loop(lambda wrong=wrong: kept.servicer.append_own(wrong))
    assert kept.contents(1) == [True]
    kept.served.on_loop(lambda: kept.servicer.append_own(expiry(1, 1)))
    assert kept.contents(1) == [False]


def test_a_sweep_that_fails_is_not_the_last_one_and_costs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    swept: list[int] = []

    class Broken:
        def retentions(self) -> list[tuple[int, object]]:
            swept.append(1)
            if len(swept) < 3:
                raise FormatError("entry", "is damaged")
            raise asyncio.CancelledError

        def expired(self, *_: object) -> list[int]:
            return []

    async def append(_: object) -> int:
        return 0

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(RetentionSweeper(Broken(), append, lambda: START, 0.0).run())  # type: ignore[arg-type]
    assert len(swept) == 3
    (line,) = (record.getMessage() for record in caplog.records)
    assert "entry: is damaged" in line
