"""A server whose clock is ahead: it refuses requests, and earlier receipts wait for the ledger's clock."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from ledger.encoding.text_forms import parse_timestamp
from services.generation.receipts.issuer import ReceiptIssuer
from services.generation.requests.halts import HaltBoard
from tests.integration.generation.deployment import Deployment, asking, failure
from tests.integration.generation.receipts.test_outbox import pending, waiting_on_disk

SERVING = "services.generation.serving"


def shifted(days: float) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


@pytest.mark.parametrize("days", [2, -2])
async def test_a_server_whose_clock_is_not_the_ledgers_serves_nothing(
    days: float, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{SERVING}.HaltBoard", partial(HaltBoard, wall_clock=lambda: shifted(days)))
    stub = await deployment.start_generation()
    refused = await failure(stub.Generate(asking(max_tokens=3)))
    assert (refused.code.name, refused.reason) == ("UNAVAILABLE", "CLOCK_WRONG")
    assert await pending(stub) == 0


async def test_receipts_that_are_dated_ahead_wait_until_the_ledgers_clock_is_there(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"{SERVING}.ReceiptIssuer", partial(ReceiptIssuer, now=lambda: shifted(2)))
    monkeypatch.setattr("services.generation.receipts.outbox._AHEAD_PAUSE", 0.01)
    stub = await deployment.start_generation()
    for name in ("one", "two"):
        answered = await stub.Generate(asking(max_tokens=3, request_id=name))
        assert answered.choices[0].receipt.pending
    assert (await pending(stub), waiting_on_disk(deployment)) == (2, 2)
    monkeypatch.setattr("ledger.documents.dates.MOST_SKEW_SECONDS", 3 * 86_400)  # as if two days had passed
    receipts = await deployment.receipts(2)
    assert sorted(receipt.request_id for receipt in receipts) == ["one", "two"]
    assert all(parse_timestamp(receipt.issued_at) > shifted(1) for receipt in receipts)
    told = [line for line in caplog.messages if "dated ahead of the ledger's clock" in line]
    assert len(told) == 2  # once each, however often they were sent
