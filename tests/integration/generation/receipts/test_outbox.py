"""Every receipt reaches the ledger: ledger down, servers restarted, callers gone, keys not trusted."""

import shutil
from contextlib import suppress
from typing import Any

import grpc
import pytest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from kolm.ledger.v1 import ledger_pb2
from ledger.keys.ed25519 import SigningKey
from services.generation.engine.events import Outcome
from services.generation.ledger_link import LedgerLink, LedgerRefused
from services.generation.receipts.issuer import ReceiptIssuer, SignedReceipt
from services.generation.receipts.journal import open_records, read_records
from services.runtime.limits import Limits
from tests.fakes.tampered_targets import BreakingTarget, GatedTarget
from tests.integration.generation.deployment import Deployment, asking, failure, until

LARGE = ledger_pb2.AppendEntryRequest(envelope=bytes(20_000))


async def pending(stub: GenerationServiceStub) -> int:
    return (await stub.GetLoad(pb.GetLoadRequest())).outbox_pending


def waiting_on_disk(deployment: Deployment) -> int:
    records, is_whole = read_records((deployment.directory / "generation" / "outbox" / "journal").read_bytes())
    assert is_whole
    return len(open_records(records))


async def until_confirmed(stub: GenerationServiceStub) -> None:
    """The ledger shows a receipt a moment before the server hears that it is there."""

    async def confirmed() -> bool:
        return await pending(stub) == 0

    await until(confirmed)


async def test_receipts_wait_for_a_ledger_that_is_down_and_go_out_in_order_when_it_is_back(
    deployment: Deployment,
) -> None:
    stub = await deployment.start_generation()
    await deployment.stop_ledger()
    names = [f"request {number}" for number in range(5)]
    for name in names:
        response = await stub.Generate(asking(max_tokens=5, request_id=name))
        receipt = response.choices[0].receipt
        assert receipt.pending
        assert not receipt.HasField("ledger_index")
        assert receipt.envelope
    assert await pending(stub) == 5
    await deployment.start_ledger()
    assert [receipt.request_id for receipt in await deployment.receipts(5)] == names
    await until_confirmed(stub)
    assert not (await stub.Generate(asking(max_tokens=5))).choices[0].receipt.pending


async def test_a_message_above_the_ledger_s_limit_is_refused_and_no_outage(deployment: Deployment) -> None:
    await deployment.stop_ledger()
    await deployment.start_ledger(Limits(message_bytes=10_000))
    link = LedgerLink(deployment.ledger_address)
    try:
        for call in (link.append_all([LARGE]), link.append(LARGE)):
            with pytest.raises(LedgerRefused) as refused:
                await call
            assert refused.value.reason == "MESSAGE_TOO_LARGE"
    finally:
        await link.close()


async def test_nothing_is_served_unreceipted_past_the_limit(deployment: Deployment) -> None:
    stub = await deployment.start_generation(outbox_limit=3)
    await deployment.stop_ledger()
    for _ in range(3):
        await stub.Generate(asking(max_tokens=3))
    refused = await failure(stub.Generate(asking(max_tokens=3)))
    assert (refused.code.name, refused.reason) == ("UNAVAILABLE", "LEDGER_UNAVAILABLE")
    assert refused.retry_seconds > 0
    await deployment.start_ledger()
    await deployment.receipts(3)
    await until_confirmed(stub)
    assert (await stub.Generate(asking(max_tokens=3))).choices
    assert (await failure(stub.Generate(asking(max_tokens=3, n=4)))).reason == "LEDGER_UNAVAILABLE"


async def test_a_receipt_that_was_confirmed_but_not_yet_removed_is_not_appended_twice(deployment: Deployment) -> None:
    await deployment.stop_ledger()
    stub = await deployment.start_generation()
    await stub.Generate(asking(max_tokens=3, request_id="once"))
    await deployment.stop_generation()
    spool, kept = deployment.directory / "generation" / "outbox", deployment.directory / "kept"
    shutil.copytree(spool, kept)
    await deployment.start_ledger()
    await deployment.start_generation()
    await deployment.receipts(1)
    await deployment.stop_generation()
    assert (spool / "journal").read_bytes() == b""
    shutil.copytree(kept, spool, dirs_exist_ok=True)  # as after a crash before the file was removed
    stub = await deployment.start_generation()
    await stub.Generate(asking(max_tokens=3, request_id="next"))
    assert [receipt.request_id for receipt in await deployment.receipts(2)] == ["once", "next"]


async def test_receipts_under_a_key_that_is_not_trusted_are_kept_and_go_out_once_it_is(deployment: Deployment) -> None:
    stub = await deployment.start_generation(trusted_keys=None, outbox_limit=2)
    for _ in range(2):
        assert (await stub.Generate(asking(max_tokens=3))).choices[0].receipt.pending
    assert await pending(stub) == 2
    assert waiting_on_disk(deployment) == 2
    assert (await failure(stub.Generate(asking(max_tokens=3)))).reason == "LEDGER_UNAVAILABLE"
    await deployment.stop_generation()
    await deployment.start_generation()  # with its key published
    assert len(await deployment.receipts(2)) == 2


async def test_a_key_that_becomes_trusted_frees_its_receipts_without_a_restart(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.generation.receipts.outbox._REFUSED_PAUSE", 0.01)
    stub = await deployment.start_generation(trusted_keys=None)
    for name in ("one", "two"):
        await stub.Generate(asking(max_tokens=3, request_id=name))
    assert await pending(stub) == 2
    SigningKey.load(deployment.settings().receipts_key, "receipts").publish(deployment.trusted)
    assert [receipt.request_id for receipt in await deployment.receipts(2)] == ["one", "two"]


async def test_a_client_that_vanishes_cancels_its_request_which_is_receipted_all_the_same(
    deployment: Deployment,
) -> None:
    stub, target = await deployment.start_wrapped(GatedTarget)
    call = stub.GenerateStream(pb.GenerateStreamRequest(request=asking(max_tokens=400, ignore_eos=True, method="off")))
    target.close()
    assert (await call.read()).HasField("started")
    target.let_pass()
    assert (await call.read()).HasField("chunk")
    call.cancel()

    async def receipted() -> bool:
        target.let_pass()
        load = await stub.GetLoad(pb.GetLoadRequest())
        return load.running == 0

    await until(receipted)
    target.open()
    (receipt,) = await deployment.receipts(1)
    assert receipt.output.finish_reason == "cancelled"
    assert 1 <= receipt.output.tokens < 400


async def test_a_deadline_cancels_too(deployment: Deployment) -> None:
    stub, target = await deployment.start_wrapped(GatedTarget)
    target.close()
    for seconds in (0.2, 2.0, 20.0):  # until one is long enough for a busy server to begin
        call = stub.Generate(asking(max_tokens=50), timeout=seconds)
        with pytest.raises(grpc.aio.AioRpcError):
            await call
        if target.stopped.is_set():
            break
    target.open()
    assert (await call.code()).name == "DEADLINE_EXCEEDED"
    (receipt,) = await deployment.receipts(1)
    assert receipt.output.finish_reason == "cancelled"


async def test_a_client_that_stops_reading_delays_no_other_client(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    request = asking(max_tokens=450, n=4, logprobs=20, ignore_eos=True)
    stalled = stub.GenerateStream(pb.GenerateStreamRequest(request=request))
    assert (await stalled.read()).HasField("started")
    others = [await stub.Generate(asking(max_tokens=10, request_id=f"other {i}")) for i in range(3)]
    assert len(others) == 3
    events = []
    while (event := await stalled.read()) is not grpc.aio.EOF:
        events.append(event)
    assert sum(event.HasField("finished") for event in events) == 4


async def test_an_engine_that_breaks_ends_its_requests_with_receipts_and_takes_no_more(deployment: Deployment) -> None:
    stub, target = await deployment.start_wrapped(BreakingTarget)
    target.broken = True
    response = await stub.Generate(asking(max_tokens=5, request_id="unlucky"))
    assert response.choices[0].finish_reason == pb.FINISH_REASON_ERROR
    (receipt,) = await deployment.receipts(1)
    assert (receipt.request_id, receipt.output.finish_reason) == ("unlucky", "error")
    refused = await failure(stub.Generate(asking(max_tokens=5)))
    assert (refused.code.name, refused.reason) == ("UNAVAILABLE", "ENGINE_STOPPED")


async def test_a_backlog_goes_out_in_order_and_what_is_refused_in_it_holds_up_nothing(deployment: Deployment) -> None:
    stub = await deployment.start_generation(trusted_keys=None)
    await deployment.stop_ledger()
    for number in range(3):
        await stub.Generate(asking(max_tokens=3, request_id=f"untrusted {number}"))
    await deployment.stop_generation()
    deployment.settings().receipts_key.unlink()  # the next ones are by another key, which is trusted
    stub = await deployment.start_generation()
    for number in range(70):  # more than one message of them
        await stub.Generate(asking(max_tokens=1, request_id=f"trusted {number}"))
    assert await pending(stub) == 73
    await deployment.start_ledger()
    listed = [receipt.request_id for receipt in await deployment.receipts(70)]
    assert listed == [f"trusted {number}" for number in range(70)]
    assert waiting_on_disk(deployment) == 3


async def served_while_the_disk_goes(
    deployment: Deployment, ledger_away: bool = False, **asked: Any
) -> tuple[GenerationServiceStub, Any]:
    """The stream of a request whose promise the disk has taken, and whose receipts it does not take."""
    changes = {"append_seconds": 1.0} if ledger_away else {}  # which the server waits for the ledger in vain
    stub, target = await deployment.start_wrapped(GatedTarget, **changes)
    request = asking(max_tokens=400, ignore_eos=True, method="off", temperature=1.0, **asked)
    call = stub.GenerateStream(pb.GenerateStreamRequest(request=request))
    assert (await call.read()).HasField("started")
    target.close()
    try:
        outbox = deployment.directory / "generation" / "outbox"
        shutil.rmtree(outbox)
        outbox.write_text("no folder")
        if ledger_away:
            await deployment.stop_ledger()
    finally:
        target.open()
    return stub, call


async def finished_of(call: Any) -> list[pb.Finished]:
    """The ends of choices that come before the stream's own."""
    finished = []
    with suppress(grpc.aio.AioRpcError):
        while (event := await call.read()) is not grpc.aio.EOF:
            finished += [event.finished] if event.HasField("finished") else []
    return finished


async def test_receipts_that_the_disk_will_not_take_go_to_the_ledger_from_memory(deployment: Deployment) -> None:
    stub, call = await served_while_the_disk_goes(deployment, n=3, request_id="three")
    assert [each.receipt.pending for each in await finished_of(call)] == [False] * 3
    assert [receipt.request_id for receipt in await deployment.receipts(3)] == ["three"] * 3
    refused = await failure(stub.Generate(asking(max_tokens=3, request_id="refused")))  # it takes no promise either
    assert (refused.code.name, refused.reason) == ("UNAVAILABLE", "LEDGER_UNAVAILABLE")
    (deployment.directory / "generation" / "outbox").unlink()
    await stub.Generate(asking(max_tokens=3, request_id="served"))
    assert [receipt.request_id for receipt in await deployment.receipts(4)] == ["three"] * 3 + ["served"]
    await until_confirmed(stub)


async def test_a_receipt_that_is_neither_on_disk_nor_in_the_ledger_is_shown_to_no_caller(
    deployment: Deployment,
) -> None:
    stub, call = await served_while_the_disk_goes(deployment, ledger_away=True, n=2, request_id="kept in memory")
    assert await finished_of(call) == []
    assert await call.code() == grpc.StatusCode.UNAVAILABLE
    refused = await failure(stub.Generate(asking(max_tokens=3)))
    assert (refused.code.name, refused.reason) == ("UNAVAILABLE", "LEDGER_UNAVAILABLE")
    (deployment.directory / "generation" / "outbox").unlink()

    async def served() -> bool:  # once the disk has taken what it did not take before
        try:
            await stub.Generate(asking(max_tokens=3, request_id="next"))
        except grpc.aio.AioRpcError:
            return False
        return True

    await until(served)
    assert waiting_on_disk(deployment) == 3
    await deployment.start_ledger()
    listed = [receipt.request_id for receipt in await deployment.receipts(3)]
    assert listed == ["kept in memory", "kept in memory", "next"]
    await until_confirmed(stub)


async def test_a_choice_whose_receipt_fails_gets_the_promised_one_and_holds_no_place(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = await deployment.start_generation(outbox_limit=3)
    issue = ReceiptIssuer.issue

    def failing(
        self: ReceiptIssuer, name: str, resolved: Any, choice: int, outcome: Outcome, *rest: Any, **named: Any
    ) -> SignedReceipt:
        if choice == 0 and outcome.token_ids:
            raise RuntimeError("a bug")
        return issue(self, name, resolved, choice, outcome, *rest, **named)

    monkeypatch.setattr(ReceiptIssuer, "issue", failing)
    assert (await failure(stub.Generate(asking(max_tokens=40, n=3)))).code.name == "INTERNAL"
    receipts = await deployment.receipts(3)
    endings = sorted((receipt.sampling.choice, receipt.output.finish_reason) for receipt in receipts)
    assert endings == [(0, "error"), (1, "length"), (2, "length")]
    monkeypatch.undo()
    assert len((await stub.Generate(asking(max_tokens=3, n=3))).choices) == 3
