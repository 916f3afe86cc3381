"""A server whose model two ranks share, each started by itself, as on two hosts."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.generation.serving import main
from services.runtime.process import CannotStart
from tests.integration.generation.deployment import Deployment, asking, until
from tests.integration.generation.test_process import stub_of
from tests.ports import known_port


async def test_a_killed_rank_ends_the_server_and_nothing_hangs(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = (await (await deployment.start_generation()).Generate(asking(max_tokens=8))).choices[0]
    await deployment.stop_generation()
    ready = deployment.directory / "ready"
    launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(known_port()), "WORLD_SIZE": "2"}
    for name, value in (launched | {"RANK": "0", "GLOO_SOCKET_IFNAME": "lo"}).items():
        monkeypatch.setenv(name, value)
    flags = {"tensor-parallel": "2", "model": str(deployment.model), "cache-bytes": "5MiB", "listen": "127.0.0.1:0"}
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.generation", *(f"--{name}={value}" for name, value in flags.items()),
        env=os.environ | {"RANK": "1"},
    )  # fmt: skip
    serving = asyncio.create_task(main(deployment.settings(ready_file=ready, tensor_parallel=2)))
    try:

        async def listening() -> bool:
            assert not serving.done()
            return await asyncio.to_thread(ready.exists)

        await until(listening)
        found = (await (await stub_of(deployment)).Generate(asking(max_tokens=8))).choices[0]
        assert plain.token_ids
        assert found.token_ids == plain.token_ids
        health = health_pb2_grpc.HealthStub(await deployment.channel(ready.read_text().strip()))
        watched = health.Watch(health_pb2.HealthCheckRequest())
        assert (await watched.read()).status == health_pb2.HealthCheckResponse.SERVING
        other.kill()
        assert (await watched.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(CannotStart, match="engine stopped"):
            await serving
    finally:
        serving.cancel()
        if other.returncode is None:
            other.kill()
        await other.wait()
    one, two = [receipt.profile_cid for receipt in await deployment.receipts(2)]
    assert one == two
