"""A promise before the answer is kept, whatever becomes of the server; without a receipt it is proof of omission."""

import asyncio
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.ledger.v1 import ledger_pb2
from ledger.audit.log_verification import verify_receipt
from ledger.documents.promise import open_promise, read_promise
from ledger.documents.receipt import Receipt
from ledger.errors import SignerUnavailable
from ledger.keys.ed25519 import SigningKey
from services.client.generation.completion import Completion
from services.client.generation.request import Request, SamplingParams
from services.client.generation.runtime import Runtime
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.promised import Promised, look_up
from services.client.ledger.verified import VerifiedLedger
from services.generation import serving
from services.generation.receipts.journal import Kind, Record, open_records, read_records
from tests.cli import kolm
from tests.fakes.tampered_targets import GatedTarget
from tests.integration.generation.deployment import Deployment, asking, failure, until
from tests.integration.generation.test_process import ended, generation_process, stub_of

BEFORE, AFTER = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


async def first_event(call: Any) -> bytes:
    """The promise of a stream's first message."""
    event = await call.read()
    return bytes(event.started.promise)


async def held(deployment: Deployment, promise: bytes, now: datetime = AFTER) -> Promised:
    """The log's answer about it."""

    def ask() -> Promised:
        with LedgerClient.connect(deployment.ledger_address) as client:
            keys = deployment.trust()
            return look_up(VerifiedLedger(client, keys), open_promise(promise, keys), now)

    return await asyncio.to_thread(ask)


async def command(deployment: Deployment, promise: bytes) -> tuple[int, dict[str, Any]]:
    """`kolm receipts promised`: exit code and answer."""
    file = deployment.directory / "promise.json"
    flags = (f"--ledger={deployment.ledger_address}", f"--trusted={deployment.trusted}", "--json")

    def run() -> tuple[int, dict[str, Any]]:
        file.write_bytes(promise)
        done = kolm("receipts", "promised", file, *flags)
        return done.code, done.document

    return await asyncio.to_thread(run)


def outbox_folder(deployment: Deployment) -> Path:
    return deployment.directory / "generation" / "outbox"


def promised(deployment: Deployment) -> list[Record]:
    """Promises that wait on the server's disk for an end of their request."""
    records, _ = read_records((outbox_folder(deployment) / "journal").read_bytes())
    return [record for record in open_records(records) if record.kind == Kind.PROMISED]


async def test_a_stream_and_a_unary_call_bring_promises_that_the_log_keeps(deployment: Deployment) -> None:
    stub = await deployment.start_generation(promise_seconds=60)
    request = asking(
        max_tokens=4, n=2, temperature=1.0, ignore_eos=True, nonce="mine", tenant="acme", request_id="streamed"
    )
    call = stub.GenerateStream(pb.GenerateStreamRequest(request=request))
    streamed = await first_event(call)
    while await call.read() is not grpc.aio.EOF:
        pass
    unary = stub.Generate(asking(max_tokens=4, ignore_eos=True))
    metadata = dict(await unary.initial_metadata())
    await unary
    await deployment.receipts(3)  # an answer may be there before the log has its receipt
    promise = open_promise(streamed, deployment.trust())
    named = (promise.tenant, promise.request_id, promise.nonce, promise.choices)
    assert named == ("acme", "streamed", "mine", 2)
    for data in (streamed, metadata["kolm-promise-bin"]):
        found = await held(deployment, data, BEFORE)
        assert (found.state, set(found.fulfilment.finish_reasons.values())) == ("KEPT", {"length"})
    assert not promised(deployment)


async def test_a_server_that_is_killed_keeps_its_promise_when_it_is_back(deployment: Deployment) -> None:
    async with generation_process(deployment) as process:
        stub = await stub_of(deployment)
        request = asking(max_tokens=480, n=16, ignore_eos=True, temperature=1.0, method="off")
        call = stub.GenerateStream(pb.GenerateStreamRequest(request=request))
        promise = await first_event(call)
        assert (await call.read()).HasField("chunk")
        process.kill()
        assert await ended(process) == -signal.SIGKILL
    assert (await held(deployment, promise)).state == "BROKEN"
    await deployment.start_generation()
    receipts = await deployment.receipts(16)
    assert [(each.output.finish_reason, each.output.tokens) for each in receipts] == [("error", 0)] * 16
    assert await command(deployment, promise) == (0, _answer(promise, "KEPT", await held(deployment, promise)))
    assert not promised(deployment)


def _answer(promise: bytes, state: str, found: Promised) -> dict[str, Any]:
    return {
        "state": state,
        "entries": {str(choice): index for choice, index in found.fulfilment.entries.items()},
        "finish_reasons": {str(choice): ending for choice, ending in found.fulfilment.finish_reasons.items()},
        "missing": found.fulfilment.missing,
        "without_output": [each for each, ending in found.fulfilment.finish_reasons.items() if ending == "error"],
        "tree_size": found.tree_size,
        "answer": None,
        "document": read_promise(promise).to_document(),
    }


async def test_the_promise_and_its_receipt_are_there_before_the_first_token(deployment: Deployment) -> None:
    _, target = await deployment.start_wrapped(GatedTarget)
    kept: list[Receipt] = []

    def on_promise(data: bytes | None) -> None:
        """No token can have been computed: the target waits until the promise has been looked at."""
        assert data is not None
        promise = open_promise(data, deployment.trust())
        kept.extend(receipt for receipt in promised_receipts(deployment) if promise.covers(receipt))
        target.open()

    def serve() -> Completion:
        target.close()
        with Runtime.connect(deployment.generation_address) as runtime:
            return runtime.serve(Request(prompt="The ledger keeps"), on_promise=on_promise)

    completion = await asyncio.to_thread(serve)
    (unfinished,) = kept
    assert unfinished.output.finish_reason == "error"
    assert completion.receipt is not None
    assert completion.receipt.receipt_id == unfinished.receipt_id


def promised_receipts(deployment: Deployment) -> list[Receipt]:
    appends = (ledger_pb2.AppendEntryRequest.FromString(record.payload) for record in promised(deployment))
    return [verify_receipt(append.envelope, deployment.trust()) for append in appends]


async def test_an_answer_with_its_promise_first_is_the_unary_answer(deployment: Deployment) -> None:
    await deployment.start_generation()
    sampling = SamplingParams(max_tokens=6, n=2, temperature=1.0, seed=5, logprobs=1, ignore_eos=True)
    request = Request(prompt="The ledger keeps", sampling=sampling)
    promises: list[bytes | None] = []

    def serve() -> tuple[Completion, Completion]:
        with Runtime.connect(deployment.generation_address) as runtime:
            return runtime.serve(request), runtime.serve(request, on_promise=promises.append)

    unary, streamed = await asyncio.to_thread(serve)
    assert promises == [streamed.promise]
    assert unary.promise is not None
    assert answer_of(streamed) == answer_of(unary)
    assert streamed.metrics.target_passes == sum(choice.metrics.target_passes for choice in streamed.choices)
    assert all(choice.receipt is not None for choice in streamed.choices)


def answer_of(completion: Completion) -> tuple[object, ...]:
    """The parts of an answer that a seed fixes."""
    choices = [(each.index, each.text, each.token_ids, each.finish_reason) for each in completion.choices]
    logprobs = [each.logprobs for each in completion.choices]
    return choices, logprobs, completion.usage.prompt_tokens, completion.usage.completion_tokens


class LosableKey(SigningKey):
    """A key in a device, which does not sign while `away`."""

    away = False

    def sign(self, message: bytes) -> bytes:
        if self.away:
            raise SignerUnavailable("the device is away")
        return super().sign(message)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[LosableKey]]:
    """The key of all generation servers that start in the test."""
    monkeypatch.setattr(serving, "open_signer", lambda path, role, *_, create: LosableKey.load_or_create(path, role))
    yield LosableKey
    LosableKey.away = False


async def test_a_request_whose_promise_is_not_signed_leaves_the_engine(
    deployment: Deployment, key: type[LosableKey]
) -> None:
    stub, target = await deployment.start_wrapped(GatedTarget)
    target.close()
    key.away = True
    refused = await failure(stub.Generate(asking(max_tokens=4)))
    assert (refused.code.name, refused.reason, refused.retry_seconds) == ("UNAVAILABLE", "SIGNER_AWAY", 5.0)
    target.let_pass()  # which may have begun

    async def is_idle() -> bool:
        load = await stub.GetLoad(pb.GetLoadRequest())
        return not load.running + load.waiting

    try:
        async with asyncio.timeout(10):
            await until(is_idle)
    finally:
        target.open()
    assert not promised(deployment)


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_receipt_that_is_not_signed_at_the_end_keeps_its_promise(
    deployment: Deployment, key: type[LosableKey], comes_back: bool
) -> None:
    stub, target = await deployment.start_wrapped(GatedTarget, append_seconds=0)
    target.close()
    call = stub.GenerateStream(pb.GenerateStreamRequest(request=asking(max_tokens=4, ignore_eos=True)))
    promise = await first_event(call)
    key.away = True
    target.open()

    async def rest() -> None:
        while await call.read() is not grpc.aio.EOF:
            pass

    assert (await failure(rest())).reason == "SIGNER_AWAY"
    key.away = not comes_back
    if not comes_back:
        await deployment.stop_generation()
    (receipt,) = await deployment.receipts(1)
    assert (receipt.output.finish_reason, receipt.output.tokens) == (("length", 4) if comes_back else ("error", 0))
    assert (await held(deployment, promise)).state == "KEPT"


async def test_what_the_engine_refuses_leaves_no_promise(deployment: Deployment) -> None:
    stub = await deployment.start_generation(max_sequences=1, max_waiting=1)
    for request, code in (
        (asking(max_tokens=400, temperature=1.0, ignore_eos=True, n=3), "RESOURCE_EXHAUSTED"),
        (asking("The ledger " * 400, max_tokens=4), "INVALID_ARGUMENT"),
    ):
        call = stub.Generate(request)
        assert (await failure(call)).code.name == code
        assert "kolm-promise-bin" not in dict(await call.initial_metadata())
        stream = stub.GenerateStream(pb.GenerateStreamRequest(request=request))
        assert (await failure(stream.read())).code.name == code
        assert not promised(deployment)
    await stub.Generate(asking(max_tokens=4, request_id="served"))
    assert [receipt.request_id for receipt in await deployment.receipts(1)] == ["served"]


async def test_no_receipt_is_shown_that_a_full_disk_and_a_kill_replace_by_another_of_its_id(
    deployment: Deployment,
) -> None:
    async with generation_process(deployment) as process:
        stub = await stub_of(deployment)
        await deployment.stop_ledger()
        request = asking(max_tokens=480, n=16, ignore_eos=True, temperature=1.0, method="off")
        call = stub.GenerateStream(pb.GenerateStreamRequest(request=request))
        promise = await first_event(call)
        size = (outbox_folder(deployment) / "journal").stat().st_size
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        finished = 0
        with suppress(grpc.aio.AioRpcError):
            while (event := await call.read()) is not grpc.aio.EOF:
                finished += event.HasField("finished")
        assert (finished, await call.code()) == (0, grpc.StatusCode.UNAVAILABLE)
        process.kill()
        assert await ended(process) == -signal.SIGKILL
    await deployment.start_ledger()
    await deployment.start_generation()
    receipts = await deployment.receipts(16)
    assert [(each.output.finish_reason, each.output.tokens) for each in receipts] == [("error", 0)] * 16
    code, answer = await command(deployment, promise)
    assert (code, answer["state"], answer["without_output"]) == (0, "KEPT", list(range(16)))
