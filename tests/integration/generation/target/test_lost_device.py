"""A device that is lost while its server answers."""

from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from services.generation.target.gpu.device import DeviceLost
from services.generation.target.gpu.gpu_target import GpuTarget, load_gpu_target
from services.runtime.process import CannotStart
from tests.integration.generation.deployment import Deployment, asking
from tests.integration.generation.test_process import serving_here

pytestmark = pytest.mark.usefixtures("pocl_device")


class Loader:
    """A `LoadTarget` onto the first device, which it can break."""

    target: GpuTarget

    def __call__(self, directory: Path, **options: Any) -> GpuTarget:
        self.target = load_gpu_target(directory, device="opencl", **options)
        return self.target

    def lose_the_device(self) -> None:
        def lost(*_: object) -> NoReturn:
            raise DeviceLost("the device fell off the bus")

        self.target.kernels.device.read = lost  # type: ignore[method-assign]


@pytest.mark.slow
async def test_what_was_computed_is_signed_and_nothing_else_and_the_server_ends(deployment: Deployment) -> None:
    loader = Loader()
    serving = await serving_here(deployment, loader)
    channel = await deployment.channel((deployment.directory / "ready").read_text().strip())
    stub, watch = GenerationServiceStub(channel), HealthStub(channel).Watch(HealthCheckRequest())
    assert (await watch.read()).status == HealthCheckResponse.SERVING

    asked = asking(max_tokens=300, ignore_eos=True, request_id="cut off", method="lookahead")
    call, tokens = stub.GenerateStream(pb.GenerateStreamRequest(request=asked)), list[int]()
    async for event in call:
        tokens += event.chunk.token_ids
        if tokens:
            loader.lose_the_device()
        if event.HasField("finished"):
            assert event.finished.finish_reason == pb.FINISH_REASON_ERROR
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(asking(max_tokens=4))
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert (await watch.read()).status == HealthCheckResponse.NOT_SERVING
    with pytest.raises(CannotStart):
        await serving

    (receipt,) = await deployment.receipts(1)
    assert (receipt.output.finish_reason, receipt.output.tokens) == ("error", len(tokens))
    on_cpu = await (await deployment.start_generation()).Generate(asked)
    assert tokens == list(on_cpu.choices[0].token_ids)[: len(tokens)]
