"""The ledger's side of RFC 3161: the newest checkpoint is stamped, an authority that is away costs nothing."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from ledger.log.reader import LedgerReader
from ledger.log.sequencer import Sequencer
from ledger.witness.cosignature_store import CosignatureStore
from services.ledger.outside_signers import TimestampCollector
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, signed_receipt
from tests.unit.ledger.log.memory_store import MemoryEntryStore


def test_the_newest_checkpoint_is_stamped_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "services.ledger.outside_signers")
    store, notes = MemoryEntryStore(), CosignatureStore(tmp_path)
    sequencer = Sequencer(store, KEYS["log"], TRUSTED, ORIGIN)
    sequencer.append(signed_receipt(0)).result()
    asked: list[tuple[bytes, str]] = []
    answers: list[tuple[int, bytes] | OSError] = [OSError("away"), (503, b""), (200, b"token"), (200, b"later")]

    def authority(body: bytes, content_type: str) -> tuple[int, bytes]:
        asked.append((body, content_type))
        answer = answers[len(asked) - 1]
        if isinstance(answer, OSError):
            raise answer
        return answer

    timestamping = TimestampCollector(LedgerReader(store, sequencer.board), notes, authority, 0.01)
    for _ in range(5):
        asyncio.run(timestamping.stamp())
    assert (len(asked), asked[0][1], notes.timestamp(1)) == (3, "application/timestamp-query", b"token")
    assert notes.note(1) == store.latest_checkpoint()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot have checkpoints timestamped, tried again until it works: away",
        "can have checkpoints timestamped again",
    ]
    sequencer.append(signed_receipt(1)).result()
    asyncio.run(timestamping.stamp())
    assert (notes.timestamp(2), notes.sizes()) == (b"later", [1, 2])
    sequencer.close()
