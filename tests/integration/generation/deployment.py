"""A ledger and a generation server in this process, on real sockets, that tests start, stop and break."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2, speculation_pb2
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from kolm.ledger.v1 import ledger_pb2
from kolm.ledger.v1.ledger_pb2_grpc import LedgerServiceStub, add_LedgerServiceServicer_to_server
from ledger.audit.log_verification import verify_receipt
from ledger.documents.erasure import Erasure
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document, sign_document
from ledger.keys.ed25519 import SigningKey
from ledger.keys.trusted_keys import TrustedKeys
from services.client.ledger.log import LogEntry
from services.generation import preparation, serving
from services.generation.engine.turns import Turns
from services.generation.preparation import LoadTarget
from services.generation.serving import mount
from services.generation.serving import opened_servicer as opened_generation
from services.generation.settings import GenerationSettings
from services.generation.target.cpu import load_target
from services.ledger.__main__ import opened_servicer as opened_ledger
from services.ledger.settings import LedgerSettings
from services.runtime.limits import Limits
from services.runtime.server import Mount, start_server
from tests.access import open_access, trust_log
from tests.fakes.engine_runs import CHEAP_ROWS
from tests.fakes.tampered_targets import Loader, WrappedTarget
from tests.keys import seeded_key
from tests.serving import known_port

Wrapped = TypeVar("Wrapped", bound=WrappedTarget)
PATIENCE = 240.0  # seconds; only a test that fails gets there
_PAUSE = 0.01  # seconds between two questions, because the server needs the CPU


@contextmanager
def drafting_pays(*, always: bool = False) -> Iterator[None]:
    """A block in which servers draft, however busy this machine is: passes are not timed, their rows are cheap.
    `always`: no turn to draft ends either.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "_pass_cost", lambda *_: CHEAP_ROWS)
        patch.setattr(serving, "idle_timing", lambda *_: None)
        if always:
            patch.setattr(Turns, "passed", lambda *_: None)
        yield


class Deployment:
    """Each `start_…` may follow a `stop_…`: state stays in `directory`, the ledger keeps its port."""

    def __init__(self, directory: Path, model: Path) -> None:
        self.directory = directory
        self.model = model
        self.trusted = directory / "trusted"
        self.ledger_address = f"127.0.0.1:{known_port()}"
        self.generation_address = ""
        self.metrics: dict[str, CollectorRegistry] = {}  # by service
        self._ledger = AsyncExitStack()
        self._generation = AsyncExitStack()
        self._channels = AsyncExitStack()

    async def start_ledger(self, limits: Limits | None = None) -> None:
        settings = trust_log(
            LedgerSettings(data_dir=self.directory / "ledger", trusted_keys=self.trusted, listen=self.ledger_address)
        )
        registry = self.metrics["ledger"] = CollectorRegistry()
        servicer = self._ledger.enter_context(opened_ledger(settings, registry))
        mount = Mount("kolm.ledger.v1.LedgerService", lambda s: add_LedgerServiceServicer_to_server(servicer, s))
        server = await start_server([mount], settings.listen, registry, open_access(), limits=limits)
        self._ledger.push_async_callback(server.stop, None)
        self._ledger.callback(servicer.close)

    async def stop_ledger(self) -> None:
        await self._ledger.aclose()

    def settings(self, **changes: Any) -> GenerationSettings:
        values = {
            "model": self.model,
            "ledger": self.ledger_address,
            "state_dir": self.directory / "generation",
            "trusted_keys": self.trusted,
            "listen": "127.0.0.1:0",
            "cache_bytes": 5 << 20,  # about 9,000 tokens of the tiny model
            "halt_poll_seconds": 0.05,
            "outbox_retry_seconds": 0.05,
            "append_seconds": PATIENCE,
        }
        return GenerationSettings(**(values | changes))

    def trusted_settings(self, **changes: Any) -> GenerationSettings:
        """Settings whose key is trusted, as `kolm up` does for its own services."""
        settings = self.settings(**changes)
        if settings.trusted_keys is not None:
            SigningKey.load_or_create(settings.receipts_key, "receipts").publish(settings.trusted_keys)
        return settings

    async def start_generation(self, load: LoadTarget = load_target, **changes: Any) -> GenerationServiceStub:
        settings = self.trusted_settings(**changes)
        registry = self.metrics["generation"] = CollectorRegistry()
        servicer = await self._generation.enter_async_context(opened_generation(settings, registry, load))
        server = await start_server([mount(servicer)], settings.listen, registry, open_access())
        self._generation.push_async_callback(server.stop, None)
        self.generation_address = server.address
        return GenerationServiceStub(await self.channel(server.address))

    async def start_wrapped(self, wrapper: type[Wrapped], **changes: Any) -> tuple[GenerationServiceStub, Wrapped]:
        """The target that computes is wrapped, and returned too."""
        loader = Loader(wrapper)
        stub = await self.start_generation(loader, **changes)
        assert isinstance(loader.target, wrapper)
        return stub, loader.target

    async def stop_generation(self) -> None:
        await self._generation.aclose()

    async def stop(self) -> None:
        await self._channels.aclose()
        await self.stop_generation()
        await self.stop_ledger()

    async def channel(self, address: str) -> grpc.aio.Channel:
        channel = grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
        self._channels.push_async_callback(channel.close)
        return channel

    async def ledger(self) -> LedgerServiceStub:
        return LedgerServiceStub(await self.channel(self.ledger_address))

    def trust(self) -> TrustedKeys:
        return TrustedKeys.load(self.trusted)

    async def append(self, document: Document, key: SigningKey) -> int:
        """Put another party's document into the ledger."""
        key.publish(self.trusted)
        request = ledger_pb2.AppendEntryRequest(envelope=sign_document(document, key).to_bytes())
        return (await (await self.ledger()).AppendEntry(request)).index

    async def erase(self, response: pb.GenerateResponse) -> None:
        """Erase the content of an answer, as an operator."""
        operator = seeded_key(bytes([9]) * 32, "operator")
        operator.publish(self.trusted)
        receipt = response.choices[0].receipt
        document = Erasure(receipt.receipt_id, receipt.ledger_index, "they asked for it", "2026-11-22T12:00:00.000Z")
        request = ledger_pb2.EraseContentRequest(envelope=sign_document(document, operator).to_bytes())
        await (await self.ledger()).EraseContent(request)

    async def receipts(self, count: int) -> list[Receipt]:
        """The first `count` receipts of the log, in its order, once they are there."""
        return [receipt async for receipt in self._watch(count)]

    async def receipt_of(self, request_id: str) -> Receipt:
        """The first one of a request, once it is in the log."""
        async with aclosing(self._watch()) as receipts:
            return await anext(each async for each in receipts if each.request_id == request_id)

    async def _watch(self, count: int = -1) -> AsyncGenerator[Receipt]:
        """`count` of them, or without end."""
        call = (await self.ledger()).WatchEntries(ledger_pb2.WatchEntriesRequest(follow=True), timeout=PATIENCE)
        async for message in call:
            entry = LogEntry(message.entry.entry)
            if entry.kind == "receipt":
                yield verify_receipt(entry.envelope.to_bytes(), self.trust())
                count -= 1
            if count == 0:
                call.cancel()
                return


def asking(prompt: str = "The ledger keeps", **members: Any) -> pb.GenerateRequest:
    """A request; `method`, `k`, `verify` … go into spec_decode, other names that sampling knows into sampling."""
    request = pb.GenerateRequest()
    if prompt:
        request.prompt = prompt
    for name, value in members.items():
        if name in speculation_pb2.SpecDecodeConfig.DESCRIPTOR.fields_by_name:
            request.spec_decode.MergeFrom(speculation_pb2.SpecDecodeConfig(**{name: value}))
        elif name in sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name:
            request.sampling.MergeFrom(sampling_pb2.SamplingParams(**{name: value}))
        else:
            request.MergeFrom(pb.GenerateRequest(**{name: value}))
    return request


class Failure:
    """The status of a failed call."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        info, request, retry = (
            error_details_pb2.ErrorInfo(),
            error_details_pb2.BadRequest(),
            error_details_pb2.RetryInfo(),
        )
        status = rpc_status.from_call(error)
        assert status is not None, error
        for detail in status.details:
            detail.Unpack(info) or detail.Unpack(request) or detail.Unpack(retry)
        self.code = error.code()
        self.message = status.message
        self.reason = info.reason
        self.metadata = dict(info.metadata)
        self.fields = [violation.field for violation in request.field_violations]
        self.retry_seconds = retry.retry_delay.ToNanoseconds() / 1e9


async def failure(call: Any, what: str = "the call") -> Failure:
    """Await a call that must fail; `what` it was, for when it does not."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return Failure(error)
    raise AssertionError(f"{what} went through")


async def until(condition: Any) -> None:
    """Ask again until a coroutine function returns True."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 (what it waits for happens in another process or thread)
            await asyncio.sleep(_PAUSE)
