"""An erasure takes the content of its receipt with it: in the same transaction, down to the bytes of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.audit.log_verification import verify_log
from ledger.documents.erasure import Erasure
from ledger.errors import FormatError
from ledger.log.reader import LedgerReader
from ledger.log.sequencer import Sequencer
from ledger.log.store import EntryStore
from ledger.sql.store import SqlEntryStore
from ledger.tree.entry import Entry
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, content, erasure, receipt_id, signed, signed_receipt
from tests.unit.ledger.log.memory_store import MemoryEntryStore


def append(store: EntryStore, *envelopes: bytes) -> Sequencer:
    sequencer = Sequencer(store, KEYS["log"], TRUSTED, ORIGIN)
    for number, envelope in enumerate(envelopes):
        sequencer.append(envelope, content(number) if number < 2 else None).result(timeout=10)
    return sequencer


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
def test_the_content_is_gone_once_the_erasure_is_there_and_every_proof_holds(kind: str, tmp_path: Path) -> None:
    store = SqlEntryStore.open(tmp_path / "ledger.db") if kind == "sqlite" else MemoryEntryStore()
    sequencer = append(store, signed_receipt(0), signed_receipt(1), signed(erasure(1, 1)))
    assert [store.content(0), store.content(1)] == [content(0), None]
    assert verify_log(store.entries(0, 10), store.latest_checkpoint(), TRUSTED).ok
    # The same receipt with its content again is the same entry, and its content does not come back.
    assert sequencer.append(signed_receipt(1), content(1)).result(timeout=10).index == 1
    assert store.content(1) is None
    assert LedgerReader(store, sequencer.board).receipt(receipt_id(1)).content is None
    sequencer.close()
    store.close()


def test_the_bytes_of_erased_content_are_in_no_file_of_the_database(tmp_path: Path) -> None:
    store = SqlEntryStore.open(tmp_path / "ledger.db")
    sequencer = append(store, signed_receipt(0), signed_receipt(1))
    salts = (content(1).prompt_salt, content(1).output_salt)
    assert all(any(salt in path.read_bytes() for path in tmp_path.iterdir()) for salt in salts)
    sequencer.append(signed(erasure(1, 1))).result(timeout=10)
    assert not any(salt in path.read_bytes() for path in tmp_path.iterdir() for salt in salts)
    assert any(content(0).prompt_salt in path.read_bytes() for path in tmp_path.iterdir())
    sequencer.close()
    store.close()


@pytest.mark.parametrize("named", [erasure(0, 1), erasure(2, 0), erasure(9, 1)])
def test_an_erasure_of_something_that_is_not_there_is_refused_and_erases_nothing(named: Erasure) -> None:
    store = MemoryEntryStore()
    sequencer = append(store, signed_receipt(0), signed_receipt(1))
    with pytest.raises(FormatError, match="receipt_index"):
        sequencer.append(signed(named)).result(timeout=10)
    assert [store.size(), store.content(0), store.content(1)] == [2, content(0), content(1)]
    sequencer.close()


def test_an_erasure_survives_verification_of_the_log_as_what_it_is() -> None:
    store = MemoryEntryStore()
    append(store, signed_receipt(0), signed_receipt(1), signed(erasure(0, 0))).close()
    report = verify_log(store.entries(0, 10), store.latest_checkpoint(), TRUSTED)
    assert (report.ok, report.kinds["erasure"]) == (True, 1)
    assert Entry.from_bytes(store.entry(2)).envelope.payload_type == "application/vnd.kolm.erasure.v1+json"
