"""Reading the ledger over the wire: entries, receipts, watches, proofs, verdicts, halts, and bundles."""

import asyncio
import io
import itertools
import json
import sqlite3
import tarfile
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from ledger.documents.signed_document import open_document
from ledger.keys.envelope import Envelope
from ledger.tree.merkle import leaf_hash, verify_consistency, verify_inclusion
from services.client.errors import DataLoss, DeadlineExceeded, InvalidArgument, NotFound
from services.client.ledger.ledger import LedgerClient
from services.ledger.servicer import LedgerServicer
from services.ledger.settings import LedgerSettings
from tests.append_stream import append_many
from tests.integration.ledger_service.conftest import Serve
from tests.integration.ledger_service.serving_ledger import serving_ledger
from tests.unit.ledger.builders import (
    SCOPE,
    TRUSTED,
    content,
    halt,
    key_entry,
    publication,
    receipt,
    receipt_id,
    resume,
    signed,
    signed_receipt,
    verdict,
    withdrawal,
)


def _append_receipts(ledger: LedgerClient, count: int, **changes: object) -> None:
    for number in range(count):
        ledger.append(signed_receipt(number, **changes))


def test_a_receipt_is_found_by_its_id_and_its_bytes_verify(ledger: LedgerClient) -> None:
    _append_receipts(ledger, 3)
    details = ledger.receipt(receipt_id(1))
    assert (details.receipt.index, details.receipt.document, details.receipt.outcome) == (1, receipt(1), None)
    assert open_document(Envelope.from_bytes(details.receipt.envelope), TRUSTED) == receipt(1)
    assert details.content is None
    assert details.verdicts == ()


def test_a_following_watch_sees_old_and_new_entries_in_order(ledger: LedgerClient) -> None:
    _append_receipts(ledger, 2)
    with ledger.watch(follow=True) as entries:
        assert [next(entries).index for _ in range(2)] == [0, 1]
        ledger.append(signed_receipt(2))
        assert next(entries).index == 2


def test_a_following_watch_sees_entries_that_no_caller_awaits(settings: LedgerSettings) -> None:
    with (
        serving_ledger(settings) as (served, servicer),
        LedgerClient.connect(served.address, wait=60) as ledger,
        ledger.watch(follow=True, timeout=60) as entries,
    ):
        ledger.append(signed_receipt(0))
        assert next(entries).index == 0
        servicer._sequencer.append(signed_receipt(1)).result()
        assert next(entries).index == 1


def test_a_watch_of_some_kinds_gives_up_as_other_calls_do(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(self: LedgerServicer, request: Any, context: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(LedgerServicer, "WatchEntries", silent)
    with (
        serve() as served,
        LedgerClient.connect(served.address, timeout=0.5) as ledger,
        ledger.watch(kinds=["head_withdrawal"]) as entries,
        pytest.raises(DeadlineExceeded),
    ):
        next(entries)


def test_a_watch_of_some_kinds_sees_those_and_only_those(ledger: LedgerClient) -> None:
    ledger.append(signed_receipt(0))
    with ledger.watch(follow=True, kinds=["key", "head_withdrawal"]) as entries:
        for document in (withdrawal(), publication(), key_entry("operator")):
            ledger.append(signed(document))
        assert [(entry.index, entry.kind) for entry in itertools.islice(entries, 2)] == [
            (1, "head_withdrawal"),
            (3, "key"),
        ]
    with ledger.watch(2, kinds=["key", "head_withdrawal"]) as entries:
        assert [entry.index for entry in entries] == [3]
    for kinds in (["receipt"], ["key", "verdict"], ["unspecified"]):
        with pytest.raises(InvalidArgument) as caught, ledger.watch(kinds=kinds) as entries:
            list(entries)
        assert caught.value.fields == ("kinds",)


@pytest.mark.parametrize("kinds", [(), ("head_withdrawal", "head_publication", "key")])
def test_a_watch_sees_the_entries_before_a_damaged_one(
    kinds: tuple[str, ...], ledger: LedgerClient, settings: LedgerSettings
) -> None:
    for document in (withdrawal(), publication(), key_entry("operator")):
        ledger.append(signed(document))
    with closing(sqlite3.connect(settings.data_dir / "ledger.sqlite3", isolation_level=None)) as database:
        database.execute("DROP TRIGGER leaves_refuse_update")
        database.execute("UPDATE leaves SET entry = x'00' WHERE \"index\" = 1")
    with ledger.watch(kinds=kinds) as entries:
        assert next(entries).index == 0
        with pytest.raises(DataLoss):
            next(entries)


def test_watchers_miss_nothing_while_many_callers_append(ledger: LedgerClient) -> None:
    def seen() -> list[int]:
        with ledger.watch(follow=True) as entries:
            return [next(entries).index for _ in range(60)]

    with ThreadPoolExecutor(12) as pool:
        watchers = [pool.submit(seen) for _ in range(4)]
        list(pool.map(ledger.append, [signed_receipt(number) for number in range(60)]))
        assert [watcher.result(timeout=60) for watcher in watchers] == [list(range(60))] * 4


def test_proofs_hold_for_every_tree_so_far(ledger: LedgerClient) -> None:
    _append_receipts(ledger, 6)
    for size in range(1, 7):
        for index in range(size):
            proven = ledger.inclusion_proof(index, size)
            assert proven.leaf_hash == leaf_hash(ledger.entry(index).entry)
            verify_inclusion(proven.leaf_hash, index, size, proven.inclusion_proof.hashes, proven.root_hash)
        older = ledger.consistency_proof(size)
        verify_consistency(size, 6, older.hashes, older.first_root_hash, older.second_root_hash)
        assert older.second_root_hash == ledger.checkpoint().root_hash


def test_a_tile_has_the_hashes_of_the_newest_signed_tree(ledger: LedgerClient) -> None:
    with append_many(ledger, ((signed_receipt(number), None) for number in range(300))) as answers:
        assert sum(1 for _ in answers) == 300
    leaves = [leaf_hash(entry.entry) for entry in ledger.watch(0)]
    assert ledger.tile(0, 0) == b"".join(leaves[:256])
    assert ledger.tile(0, 1) == b"".join(leaves[256:])
    assert len(ledger.tile(1, 0)) == 32
    for level, number in ((0, 2), (1, 1), (2, 0), (2**32 - 1, 0), (0, 2**64 - 1)):
        with pytest.raises(NotFound):
            ledger.tile(level, number)


@pytest.fixture
def audited(ledger: LedgerClient) -> LedgerClient:
    """Receipts 0 to 3; verdicts EXACT on 0, DEVIATION on 1, EXACT on 2 (indexes 4, 5, 6)."""
    _append_receipts(ledger, 4)
    ledger.append(signed(verdict(0, 0)))
    ledger.append(signed(verdict(1, 1, "DEVIATION")))
    ledger.append(signed(verdict(2, 2)))
    return ledger


def test_verdicts_are_listed_by_receipt_and_by_outcome(audited: LedgerClient) -> None:
    assert [each.index for each in audited.verdicts(page_size=1)] == [4, 5, 6]
    assert [each.index for each in audited.verdicts(outcome="EXACT", page_size=1)] == [4, 6]
    first = audited.newest_verdicts(page_size=2)
    audited.append(signed(verdict(3, 3)))  # moves no page that comes after
    second = audited.newest_verdicts(page_size=2, page_token=first.next_page_token)
    assert [[each.index for each in page.verdicts] for page in (first, second)] == [[6, 5], [4]]
    assert second.next_page_token == ""
    assert [each.index for each in audited.newest_verdicts(outcome="EXACT").verdicts] == [7, 6, 4]
    with pytest.raises(InvalidArgument, match="page_token"):
        audited.newest_verdicts(outcome="EXACT", page_token=first.next_page_token)
    (found,) = audited.verdicts(receipt_id=receipt_id(1))
    assert found.document == verdict(1, 1, "DEVIATION")
    with pytest.raises(InvalidArgument):
        list(audited.verdicts(outcome="FINE"))


def test_a_halt_stands_until_it_is_resumed_and_the_epoch_stays(audited: LedgerClient) -> None:
    halted = audited.append(signed(halt(5)))
    assert halted.halt_epoch == 1
    state = audited.halt_state()
    (found,) = state.halts
    assert (state.epoch, found.halt_index, found.verdict_index) == (1, halted.index, 5)
    assert (found.scope.base_cid, found.scope.method) == (SCOPE.base_cid, SCOPE.method)
    audited.append(signed(resume(halted.index)))
    resumed = audited.halt_state()
    assert (resumed.epoch, resumed.halts) == (1, ())


def unpacked(pieces: Iterable[bytes]) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def indexes(files: dict[str, bytes]) -> list[int]:
    lines = [line for path in sorted(files) if path.startswith("entries/") for line in files[path].splitlines()]
    return [json.loads(line)["index"] for line in lines]


@pytest.fixture
def filled(ledger: LedgerClient) -> LedgerClient:
    for number in range(4):
        ledger.append(signed_receipt(number), content(number))
    ledger.append(signed(verdict(1, 1)))
    return ledger


def test_everything_is_exported_where_nothing_is_named(filled: LedgerClient) -> None:
    files = unpacked(filled.export())
    assert indexes(files) == [0, 1, 2, 3, 4]
    assert json.loads(files["bundle.json"])["range"] == {"start": 0, "end": 5}
    assert files["checkpoint"] == filled.checkpoint().note
    assert not any(path.startswith("content/") for path in files)
    assert any(path.startswith("keys/receipts-") for path in files)


def test_a_bundle_that_no_verifier_would_read_is_refused(filled: LedgerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.bundle.layout.MAX_FILES", 3)
    with pytest.raises(InvalidArgument) as caught:
        list(filled.export())
    assert (caught.value.reason, caught.value.fields) == ("BUNDLE_TOO_LARGE", ("end_index",))


def test_receipts_come_with_what_is_needed_to_judge_them(filled: LedgerClient) -> None:
    files = unpacked(filled.export([receipt_id(1), receipt_id(3)]))
    assert indexes(files) == [1, 3, 4]  # with the verdict on the first
    assert json.loads(files["bundle.json"])["range"] == {"start": 0, "end": 0}


def test_what_the_log_does_not_hold_is_not_found(filled: LedgerClient) -> None:
    with pytest.raises(NotFound, match=receipt_id(9)):
        list(filled.export([receipt_id(1), receipt_id(9)]))
    with pytest.raises(NotFound, match="range"):
        list(filled.export(start_index=2, end_index=99))
    with pytest.raises(InvalidArgument) as caught:
        list(filled.export(start_index=3, end_index=2))
    assert caught.value.fields == ("start_index",)
    with pytest.raises(InvalidArgument) as caught:
        list(filled.export([receipt_id(1)] * 1001))
    assert caught.value.fields == ("receipt_ids",)
