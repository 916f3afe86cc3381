"""Receipts: the key's entry, the speedup they state, and the data dropped when content is erased."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kolm.ledger.v1 import ledger_pb2
from ledger.documents.key_entry import KeyEntry
from ledger.documents.signed_document import read_document, sign_document
from ledger.encoding.text_forms import parse_timestamp, timestamp
from ledger.keys.envelope import Envelope
from ledger.tree.entry import Entry
from services.generation import remote_preparation
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.engine.drafter import Drafter
from services.generation.engine.events import EMPTY_OUTCOME
from services.generation.engine.prefix_disk import PrefixFolder
from services.generation.engine.request import EngineRequest, RequestKey, SamplingParams
from services.generation.ledger_link import LedgerLink, LedgerRefused, LedgerUnreachable
from services.generation.receipts import erasures, outbox
from services.generation.receipts.erasures import Erasures
from services.generation.receipts.issuer import Speedup, replayed
from services.generation.receipts.outbox import Outbox, key_envelope, register
from tests.keys import seeded_key
from tests.mutations import replace
from tests.unit.ledger.builders import KEYS, at, engine_profile, erasure, expiry, receipt_id


def test_a_key_and_its_successor_are_each_put_on_record_once(tmp_path: Path) -> None:
    old, new = (seeded_key(bytes([number]) * 32, "receipts") for number in (1, 2))
    first = key_envelope(tmp_path / "key", old)
    assert key_envelope(tmp_path / "key", old) == first
    second = key_envelope(tmp_path / "key", new)
    recorded = read_document(Envelope.from_bytes(second))
    assert isinstance(recorded, KeyEntry)
    assert (recorded.public_key, key_envelope(tmp_path / "key", new)) == (new.public, second)


def dated(days: float) -> str:
    return timestamp(datetime.now(UTC) + timedelta(days=days))


@pytest.mark.parametrize(("days", "is_kept"), [(-1000, True), (0, True), (1000, False)])
def test_an_entry_that_was_dated_ahead_of_the_clock_is_signed_again(tmp_path: Path, days: float, is_kept: bool) -> None:
    """The ledger takes none before its date, and so nothing refers to it."""
    path, key = tmp_path / "entry", KEYS["receipts"]
    path.write_bytes(entry := sign_document(KeyEntry(key.role, key.public, dated(days)), key).to_bytes())
    assert (key_envelope(path, key) == entry) is is_kept
    entry = sign_document(engine_profile(issued_at=dated(days)), key).to_bytes()
    assert remote_preparation._is_entry_of(entry, engine_profile(issued_at=dated(0)), key.public) is is_kept


async def test_a_key_entry_is_signed_again_once_the_clock_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_REFUSED_PAUSE", 0.0)
    sent: list[bytes] = []

    class Ledger:
        async def append(self, request: ledger_pb2.AppendEntryRequest) -> None:
            sent.append(request.envelope)
            if request.envelope == b"ahead":
                raise LedgerRefused("CLOCK_AHEAD", "no")

    waiting = cast(Outbox, SimpleNamespace(refused=0))
    again = iter([b"ahead", b"right"])
    ledger = cast(LedgerLink, Ledger())
    await register([b"ahead", b"profile"], KEYS["receipts"], ledger, waiting, lambda: next(again))
    assert sent == [b"ahead", b"ahead", b"right", b"profile"]


SERVED = replace(
    EMPTY_OUTCOME.metrics,
    num_draft_tokens=8,
    num_accepted_tokens=6,
    target_passes=4,
    output_tokens=10,
    decode_seconds=1.5,
)
"""2.5 tokens per pass."""


def test_a_replay_gives_the_ratio_of_the_two_times() -> None:
    assert replayed(3.0, SERVED) == Speedup(2.0, "replayed")
    assert replayed(0.75, SERVED) == Speedup(0.5, "replayed")


def test_nothing_is_stated_above_the_tokens_of_a_pass() -> None:
    assert replayed(2.5 * 1.5, SERVED) == Speedup(2.5, "replayed")
    assert replayed(2.51 * 1.5, SERVED) is None


def test_nothing_is_stated_where_nothing_was_drafted() -> None:
    assert replayed(1.5, replace(SERVED, num_draft_tokens=0, num_accepted_tokens=0)) is None


def test_nothing_is_stated_where_nothing_was_measured() -> None:
    assert replayed(1.0, replace(SERVED, decode_seconds=0.0)) is None
    assert replayed(0.0, SERVED) is None


OPERATOR = seeded_key(bytes([7]) * 32, "operator")


class Log:
    """Erasures of the receipts of some numbers, an entry each."""

    def __init__(self, *receipts: int) -> None:
        self.entries: list[Entry] = []
        self.asked: list[int] = []
        self.most = 100  # entries until the call's deadline has passed
        for number in receipts:
            self.erase(number)

    def erase(self, number: int) -> None:
        document = erasure(number, number)
        self.entries.append(Entry(10 * len(self.entries), sign_document(document, OPERATOR)))

    async def read(self, start: int) -> AsyncIterator[Entry]:
        self.asked.append(start)
        left = [entry for entry in self.entries if entry.index >= start]
        for entry in left[: self.most]:
            yield entry
        if len(left) > self.most:
            raise LedgerUnreachable("DEADLINE_EXCEEDED")


class Noting(Drafter):
    def __init__(self) -> None:
        self.forgot: list[tuple[str, RequestKey | None]] = []

    def forget(self, tenant: str, request: RequestKey | None = None) -> None:
        self.forgot.append((tenant, request))


def following(log: Log, drafters: Sequence[Drafter]) -> Erasures:
    found = Erasures(drafters, log.read, 0.01)
    for number, tenant in ((1, "a"), (2, "b")):
        found.issued(receipt_id(number), tenant, (f"request {number}", 3))
    return found


def test_every_drafter_forgets_what_was_erased_and_nothing_else() -> None:
    log, drafters = Log(1, 9), (Noting(), Noting())
    found = following(log, drafters)
    asyncio.run(found.refresh())
    assert [drafter.forgot for drafter in drafters] == [[("a", ("request 1", 3))]] * 2
    log.erase(2)
    asyncio.run(found.refresh())
    asyncio.run(found.refresh())
    assert drafters[0].forgot == [("a", ("request 1", 3)), ("b", ("request 2", 3))]
    assert log.asked == [0, 11, 21]


def test_more_erasures_than_one_call_has_time_for_are_read_by_several() -> None:
    log, drafter = Log(*range(9, 3, -1), 1), Noting()
    found, log.most = following(log, [drafter]), 3
    for _ in range(2):
        with pytest.raises(LedgerUnreachable):
            asyncio.run(found.refresh())
    asyncio.run(found.refresh())
    assert log.asked == [0, 21, 51]
    assert drafter.forgot == [("a", ("request 1", 3))]


def test_a_server_that_keeps_nothing_of_what_receipts_say_asks_for_no_erasures() -> None:
    log = Log(1)
    asyncio.run(asyncio.wait_for(following(log, []).follow(), 10.0))
    assert log.asked == []


def test_an_entry_that_cannot_be_read_keeps_no_other_from_being_heeded() -> None:
    log, drafter = Log(1, 2), Noting()
    log.entries[0] = replace(log.entries[0], envelope=replace(log.entries[0].envelope, payload=b"junk"))
    asyncio.run(following(log, [drafter]).refresh())
    assert drafter.forgot == [("b", ("request 2", 3))]


def test_what_could_not_be_found_again_is_forgotten_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasures, "MOST_ISSUED", 2)
    drafter = Noting()
    found = following(Log(), [drafter])
    found.issued(receipt_id(3), "c", ("request 3", 0))
    assert drafter.forgot == [("a", ("request 1", 3))]


def test_an_expiry_lets_what_is_old_and_theirs_be_forgotten() -> None:
    log, drafter = Log(), Noting()
    found = following(log, [drafter])
    found.issued(receipt_id(40), "a", ("request 40", 0))
    document = expiry(0, 9, issued_before=at(30), except_tenants=("b",))
    log.entries.append(Entry(0, sign_document(document, KEYS["log"])))
    asyncio.run(found.refresh())
    assert drafter.forgot == [("a", ("request 1", 3))]


def test_an_erased_output_is_not_drafted_from() -> None:
    drafter = LookaheadDrafter()
    request = EngineRequest("request 1", (1,), SamplingParams(), 3, method="lookahead", tenant="a")
    drafter.begin(request).finish([1, 4, 5, 6])
    assert len(drafter._pasts.of(request).text) == 4
    asyncio.run(following(Log(1), [drafter]).refresh())
    assert len(drafter._pasts.of(request).text) == 0


def test_what_the_disk_has_of_erased_content_goes_by_its_age_whatever_process_wrote_it() -> None:
    class Folder(PrefixFolder):
        def __init__(self) -> None:
            self.erased: list[tuple[float, str | None, Collection[str]]] = []

        def erase(self, until: float, tenant: str | None = None, but: Collection[str] = ()) -> None:
            self.erased.append((until, tenant, but))

    log, folder = Log(1, 9), Folder()
    early = erasure(2, 400, issued_at=at(3))  # by a clock that is behind, or prepared beforehand
    for document, key in ((early, OPERATOR), (expiry(0, 9, issued_before=at(30), except_tenants=("b",)), KEYS["log"])):
        log.entries.append(Entry(10 * len(log.entries), sign_document(document, key)))
    found = Erasures([], log.read, 0.01, folder)
    found.issued(receipt_id(1), "a", ("request 1", 0))
    asyncio.run(found.refresh())
    seconds = [parse_timestamp(at(number)).timestamp() for number in (350, 400, 30)]
    assert folder.erased == [
        (seconds[0], "a", ()), (seconds[0], None, ()), (seconds[1], None, ()), (seconds[2], None, ("b",)),
    ]  # fmt: skip
