"""A generation servicer whose behaviour the request's id chooses: one of each way that a call can go.

As `python -m tests.integration.runtime.scripted [flags]` a server process with a call that never ends.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceServicer, add_GenerationServiceServicer_to_server
from services.runtime.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from services.runtime.process import run_service
from services.runtime.server import Mount, serve
from services.runtime.settings import RpcServerSettings, settings_config

SERVICE = "kolm.generation.v1.GenerationService"


class ScriptedServicer(GenerationServiceServicer):
    """`closed` is set when a stream's generator has been closed, or an endless call has ended, in whatever way."""

    def __init__(self) -> None:
        self.begun, self.closed = threading.Event(), threading.Event()

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        self._maybe_fail(request.request_id)
        if request.request_id == "endless":
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.closed.set()
        if request.request_id == "peer":
            (name,) = context.peer_identities()
            return _answer(name.decode())
        if request.request_id == "told":
            await context.send_initial_metadata((("kolm-told", "before the answer"),))
            left = context.time_remaining()
            return _answer("no deadline" if left is None else f"{left:.0f}")
        return _answer(f"{len(request.prompt)} characters")

    async def GenerateStream(
        self, request: pb.GenerateStreamRequest, context: Any
    ) -> AsyncIterator[pb.GenerateStreamResponse]:
        try:
            yield pb.GenerateStreamResponse(started=pb.Started())
            self._maybe_fail(request.request.request_id)
            if request.request.request_id == "endless":
                await asyncio.Event().wait()
            if request.request.request_id == "torrent":
                while True:
                    yield pb.GenerateStreamResponse(chunk=pb.Chunk(text="x" * 10_000))
            if request.request.request_id == "as many as are buffered":
                for _ in range(14):
                    yield pb.GenerateStreamResponse(chunk=pb.Chunk(text="x"))
            yield pb.GenerateStreamResponse(finished=pb.Finished(finish_reason=pb.FINISH_REASON_STOP))
        finally:
            self.closed.set()

    def _maybe_fail(self, script: str) -> None:
        if script == "bug":
            raise KeyError("a secret detail of the implementation")
        if script == "bad field":
            raise InvalidArgument("sampling.top_p", "expected above 0 and at most 1, got 1.5")
        if script == "full":
            raise ResourceExhausted("the queue is full", retry_after=0.5)
        if script == "halted":
            raise FailedPrecondition("halted", reason="SPEC_DECODE_HALTED", metadata={"halt_index": "7"})


def mount(servicer: ScriptedServicer) -> Mount:
    return Mount(SERVICE, lambda server: add_GenerationServiceServicer_to_server(servicer, server))


class StubbornSettings(RpcServerSettings):
    model_config = settings_config("stubborn")


async def main(settings: StubbornSettings) -> None:
    await serve("stubborn", [mount(ScriptedServicer())], settings)


def _answer(text: str) -> pb.GenerateResponse:
    return pb.GenerateResponse(choices=[pb.Choice(finish_reason=pb.FINISH_REASON_STOP, text=text)])


if __name__ == "__main__":
    sys.exit(run_service(StubbornSettings, main))
