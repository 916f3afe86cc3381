"""The real process: started, killed, stopped."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from services.generation.preparation import LoadTarget
from services.generation.serving import main
from services.runtime.process import CannotStart
from tests.access import open_access_file
from tests.fakes.tampered_targets import BreakingTarget, Loader
from tests.forked import Forked
from tests.integration.generation.deployment import PATIENCE, Deployment, Failure, asking, until


@asynccontextmanager
async def generation_process(deployment: Deployment, **flags: str) -> AsyncIterator[Forked]:
    """`python -m services.generation`, answering; the caller ends it."""
    settings = deployment.trusted_settings()
    given = {
        "model": str(settings.model),
        "ledger": settings.ledger,
        "state-dir": str(settings.state_dir),
        "trusted-keys": str(settings.trusted_keys),
        "listen": "127.0.0.1:0",
        "ready-file": str(deployment.directory / "ready"),
        "cache-bytes": "5MiB",
        "principals": str(open_access_file()),
    } | flags
    with Forked("services.generation", *(f"--{name}={value}" for name, value in given.items())) as process:
        async with asyncio.timeout(PATIENCE):
            while "listening on" not in (line := await asyncio.to_thread(process.stderr.readline)):
                assert line, "the process ended before it listened"
        yield process


async def ended(process: Forked) -> int:
    """The exit code of a process that is about to end."""
    return await asyncio.to_thread(process.wait, PATIENCE)


async def stub_of(deployment: Deployment) -> GenerationServiceStub:
    return GenerationServiceStub(await deployment.channel((deployment.directory / "ready").read_text().strip()))


async def serving_here(deployment: Deployment, loader: LoadTarget) -> asyncio.Task[None]:
    """`services.generation` in this process, listening."""
    ready = deployment.directory / "ready"
    settings = deployment.trusted_settings(ready_file=ready, principals=open_access_file())
    serving = asyncio.create_task(main(settings, loader))

    async def listening() -> bool:
        assert not serving.done()
        return await asyncio.to_thread(ready.exists)

    await until(listening)
    return serving


async def test_receipts_survive_kill_nine_and_reach_the_ledger_at_the_next_start(deployment: Deployment) -> None:
    await deployment.stop_ledger()
    async with generation_process(deployment) as process:
        stub = await stub_of(deployment)
        for name in ("one", "two"):
            assert (await stub.Generate(asking(max_tokens=4, request_id=name))).choices[0].receipt.pending
        process.kill()
        assert await ended(process) == -signal.SIGKILL
    await deployment.start_ledger()
    await deployment.start_generation()
    assert [receipt.request_id for receipt in await deployment.receipts(2)] == ["one", "two"]
    key = deployment.directory / "generation" / "keys" / "receipts.pem"
    assert (await asyncio.to_thread(key.stat)).st_mode & 0o777 == 0o600


async def test_a_server_whose_engine_has_stopped_stops_too_and_says_why(deployment: Deployment) -> None:
    loader = Loader(BreakingTarget)
    serving = await serving_here(deployment, loader)
    stub = await stub_of(deployment)
    assert isinstance(loader.target, BreakingTarget)
    loader.target.broken = True
    await stub.Generate(asking(max_tokens=4))
    with pytest.raises(CannotStart):
        await serving


@pytest.mark.parametrize("damaged", ["trusted/log-damaged.pub", "generation/key-*.json"])
async def test_a_damaged_file_of_keys_ends_the_start_by_its_name(deployment: Deployment, damaged: str) -> None:
    await deployment.start_generation()
    await deployment.stop_generation()
    file = next(deployment.directory.glob(damaged), deployment.directory / damaged)
    file.write_text("")
    with pytest.raises(CannotStart, match=file.name):
        await deployment.start_generation()


async def test_sigterm_ends_running_requests_with_receipts_and_exits_clean(deployment: Deployment) -> None:
    """More is asked for than the server computes until the signal is there, however late that is sent."""
    async with generation_process(deployment, **{"grace-seconds": "0"}) as process:
        stub = await stub_of(deployment)
        request = asking(max_tokens=480, n=16, ignore_eos=True, temperature=1.0)
        calls = [stub.GenerateStream(pb.GenerateStreamRequest(request=request)) for _ in range(_CALLS)]
        for call in calls:
            assert (await call.read()).HasField("started")
        process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError) as broken:
            await _read_to_the_end(*calls)
        told = Failure(broken.value)
        assert (told.code.name, told.reason) == ("UNAVAILABLE", "SERVER_STOPPING")
        assert await ended(process) == 0
    receipts = await deployment.receipts(16 * _CALLS)
    chosen = Counter(receipt.sampling.choice for receipt in receipts)
    assert chosen == dict.fromkeys(range(16), _CALLS)
    assert "cancelled" in {receipt.output.finish_reason for receipt in receipts}


async def test_a_grammar_that_overflows_a_stack_ends_its_own_request_and_one_that_hangs_holds_up_no_stop(
    deployment: Deployment,
) -> None:
    chain = "\n".join(["start: r0", *(f'r{n}: r{n + 1} | "a"' for n in range(4000)), 'r4000: "b"'])
    async with generation_process(deployment, **{"grace-seconds": "0"}) as process:
        stub = await stub_of(deployment)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Generate(_held("grammar", chain))
        assert Failure(refused.value).fields == ["sampling.structured_outputs.grammar"]
        assert (await stub.Generate(_held("regex", "honest"))).choices[0].text == "honest"
        (trial,) = await asyncio.to_thread(_trials, process.pid)
        os.kill(trial, signal.SIGSTOP)
        hanging = asyncio.ensure_future(stub.Generate(_held("regex", "held up")))
        assert (await stub.Generate(asking(max_tokens=2))).choices[0].token_ids
        process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0
        with pytest.raises(grpc.aio.AioRpcError):
            await hanging
    assert not await asyncio.to_thread(Path(f"/proc/{trial}").exists)


def _held(kind: str, text: str) -> pb.GenerateRequest:
    return asking(max_tokens=40, structured_outputs=sampling_pb2.StructuredOutputs(**{kind: text}))


def _trials(server: int) -> list[int]:
    """The processes of this server in which grammars are tried out."""
    found = []
    for task in Path(f"/proc/{server}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            if b"grammar_compiler" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


_CALLS = 6


async def _read_to_the_end(*calls: Any) -> None:
    for call in calls:
        while await call.read() is not grpc.aio.EOF:
            pass
