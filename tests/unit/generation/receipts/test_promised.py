"""Promises of a killed server: the log gets each receipt once, the real one where there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kolm.ledger.v1 import ledger_pb2
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import sign_document
from services.generation.receipts.issuer import SignedReceipt
from services.generation.receipts.outbox import Outbox
from services.generation.receipts.promised import PromisedReceipts
from services.generation.receipts.spool import Spool
from tests.unit.ledger.builders import KEYS, content, receipt


def signed(document: Receipt, number: int) -> SignedReceipt:
    return SignedReceipt(document.receipt_id, sign_document(document, KEYS["receipts"]).to_bytes(), content(number))


def unfinished(number: int) -> SignedReceipt:
    plain = receipt(number)
    return signed(replace(plain, output=replace(plain.output, finish_reason="error", stop_reason=None)), number)


async def test_a_promised_receipt_goes_to_the_log_only_where_the_real_one_is_not_there(tmp_path: Path) -> None:
    spool, promised = Spool(tmp_path / "outbox"), PromisedReceipts(tmp_path / "promised")
    real = signed(receipt(1), 1)
    spool.put(real.append)
    promised.keep([unfinished(1), unfinished(2)])
    sent: list[bytes] = []

    async def append_all(
        requests: Sequence[ledger_pb2.AppendEntryRequest],
    ) -> list[ledger_pb2.AppendEntryResponse]:
        sent.extend(request.envelope for request in requests)
        return [ledger_pb2.AppendEntryResponse() for _ in requests]

    outbox = Outbox(Spool(tmp_path / "outbox"), append_all, 10, 1.0)
    await outbox.recover(PromisedReceipts(tmp_path / "promised").left())
    draining = asyncio.create_task(outbox.drain())
    await asyncio.wait_for(outbox.attempted(), 60)
    draining.cancel()
    assert sent == [real.envelope, unfinished(2).envelope]
    assert not list((tmp_path / "promised").iterdir())
    assert outbox.pending == 0


def test_what_the_disk_does_not_take_whole_is_not_kept(tmp_path: Path) -> None:
    promised = PromisedReceipts(tmp_path / "promised")
    promised.path(unfinished(2).receipt_id).mkdir()  # nothing can be written over it
    with pytest.raises(IsADirectoryError):
        promised.keep([unfinished(1), unfinished(2)])
    assert not promised.path(unfinished(1).receipt_id).exists()
