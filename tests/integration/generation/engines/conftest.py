"""Fakes of another engine, one that speculates and one that does not, and the servers before them."""

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.ledger.v1 import documents_pb2, ledger_pb2
from ledger.documents.engine_profile import EngineProfile
from ledger.documents.receipt import Receipt
from ledger.encoding.commitment import OUTPUT_TEXT_DOMAIN, commit_text
from ledger.encoding.stream_digest import token_digest
from ledger.encoding.text_forms import cid
from services.client.ledger.log import LogEntry
from services.generation.engine.text.tokenizer import Tokenizer
from tests.fakes.upstreams import FakeUpstream, listening
from tests.integration.generation.deployment import PATIENCE, Deployment, asking, until

KINDS = ("vllm", "sglang", "llama-server")


class Engines:
    """A pair of fakes, and servers before them."""

    def __init__(self, deployment: Deployment, model: Path) -> None:
        self.deployment, self.model = deployment, model
        self.tokenizer = Tokenizer(model)
        self._names = map("request {}".format, itertools.count())
        self._plain_listens, self._fast_listens = AsyncExitStack(), AsyncExitStack()
        self.stub: Any
        self.plain: FakeUpstream
        self.fast: FakeUpstream

    def fake(self, kind: str, **members: Any) -> FakeUpstream:
        letters = [token for token in range(4, 384) if self.tokenizer.decode([token]).isascii()]
        return FakeUpstream(kind, self.tokenizer, vocabulary=letters, **members)

    async def start(
        self, kind: str = "vllm", *, weights: bool = True, lie: dict[str, Any] | None = None, **settings: Any
    ) -> Any:
        self.plain, self.fast = self.fake(kind, **(lie or {})), self.fake(kind, speculates=True)
        await self._plain_listens.enter_async_context(listening(self.plain))
        await self.restart_fast()
        self.stub = await self.deployment.start_generation(
            engine=kind, plain_url=self.plain.url, url=self.fast.url, weights=self.model if weights else None,
            **settings,
        )  # fmt: skip
        return self.stub

    async def profiles(self, count: int) -> dict[str, EngineProfile]:
        """The first `count` profiles of the log by their digests, once they are there."""
        found: dict[str, EngineProfile] = {}
        request = ledger_pb2.WatchEntriesRequest(follow=True, kinds=[documents_pb2.ENTRY_KIND_ENGINE_PROFILE])
        async for message in (await self.deployment.ledger()).WatchEntries(request, timeout=PATIENCE):
            payload = LogEntry(message.entry.entry).envelope.payload
            found[cid(payload)] = EngineProfile.from_bytes(payload)
            if len(found) == count:
                break
        return found

    async def receipt(self, **members: Any) -> Receipt:
        """The receipt of an answer that is returned whole."""
        await self.stub.Generate(asking(request_id=(name := next(self._names)), **members))
        return await self.deployment.receipt_of(name)

    async def signed(self, **members: Any) -> Receipt:
        """The receipt of a stream, whole or broken off, which is of exactly the returned tokens and text."""
        name, chunks = next(self._names), list[pb.Chunk]()
        with suppress(grpc.aio.AioRpcError):  # if it failed before its first token
            request = pb.GenerateStreamRequest(request=asking(request_id=name, **members))
            async for event in self.stub.GenerateStream(request):
                chunks.append(event.chunk)
        receipt = await self.deployment.receipt_of(name)
        ids = [token for chunk in chunks for token in chunk.token_ids]
        asked = ledger_pb2.GetReceiptRequest(receipt_id=receipt.receipt_id, include_content=True)
        content = (await (await self.deployment.ledger()).GetReceipt(asked)).content
        text = commit_text(OUTPUT_TEXT_DOMAIN, content.output_salt, "".join(chunk.text for chunk in chunks))
        assert (receipt.output.tokens, receipt.output.stream_digest) == (len(ids), token_digest(ids))
        assert receipt.output.text_commitment == text
        return receipt

    async def ended(self, **members: Any) -> tuple[str, int]:
        """How such a stream of at most five tokens ended, and how many it had."""
        output = (await self.signed(**({"max_tokens": 5} | members))).output
        return output.finish_reason, output.tokens

    async def until_answered_by(self, method: str) -> None:
        async def answered() -> bool:
            return (await self.stub.Generate(asking(max_tokens=3))).resolved.method == method

        await until(answered)

    async def restart_fast(self) -> None:
        await self._fast_listens.enter_async_context(listening(self.fast))

    async def stop_fast(self) -> None:
        await self._fast_listens.aclose()

    async def asked(self) -> bool:
        """Whether the upstream that speculates has been sent a request."""
        return bool(self.fast.bodies)

    async def close(self) -> None:
        await self.stop_fast()
        await self._plain_listens.aclose()


@pytest.fixture
async def engines(deployment: Deployment, model: Path) -> AsyncIterator[Engines]:
    engines = Engines(deployment, model)
    yield engines
    await deployment.stop_generation()
    await engines.close()
