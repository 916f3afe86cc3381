"""The generation server as a KServe v2 server, by Triton's own client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.generation.deployment import Deployment

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = "The ledger keeps"
GREEDY = {"temperature": 0, "max_tokens": "24"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployment]:
    model: Path = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    deployment = Deployment(tmp_path_factory.mktemp("deployment"), model)
    await deployment.start_ledger()
    await deployment.start_generation(model_name="tiny", kserve=True)
    yield deployment
    await deployment.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def triton(deployment: Deployment) -> AsyncIterator[InferenceServerClient]:
    options = [("grpc.enable_http_proxy", 0)]
    async with InferenceServerClient(deployment.generation_address, channel_args=options) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(deployment: Deployment) -> str:
    same = pb.GenerateRequest(prompt=PROMPT)
    same.sampling.max_tokens = 24
    stub = GenerationServiceStub(await deployment.channel(deployment.generation_address))
    return (await stub.Generate(same)).choices[0].text


def tensors(text: str = PROMPT, parameters: dict[str, Any] | None = None, **flags: bool) -> list[InferInput]:
    texts = {"text_input": text, "sampling_parameters": json.dumps(GREEDY if parameters is None else parameters)}
    arrays = {name: np.array([value.encode()], dtype=object) for name, value in texts.items()}
    arrays |= {name: np.array([value]) for name, value in flags.items()}
    made = []
    for name, array in arrays.items():
        made.append(InferInput(name, [1], "BYTES" if name in texts else "BOOL"))
        made[-1].set_data_from_numpy(array)
    return made


async def test_the_server_and_its_model_are_described(triton: InferenceServerClient) -> None:
    assert await triton.is_server_live()
    assert await triton.is_server_ready()
    assert await triton.is_model_ready("tiny")
    assert not await triton.is_model_ready("another")
    assert (await triton.get_server_metadata()).name == "kolm"
    metadata = await triton.get_model_metadata("tiny")
    assert [(each.name, each.datatype) for each in metadata.inputs][:2] == [("text_input", "BYTES"), ("stream", "BOOL")]
    assert metadata.outputs[0].name == "text_output"
    config = (await triton.get_model_config("tiny")).config
    assert config.model_transaction_policy.decoupled
    assert {each.name: each.optional for each in config.input}["text_input"] is False
    assert config.output[0].data_type == 13


async def test_an_answer_is_the_generation_service_s(triton: InferenceServerClient, expected: str) -> None:
    whole = await triton.infer("tiny", tensors(), request_id="7")
    assert whole.as_numpy("text_output").tolist() == [(PROMPT + expected).encode()]
    assert whole.get_response().id == "7"
    outputs = [InferRequestedOutput("text_output"), InferRequestedOutput("finish_reason")]
    asked = tensors(exclude_input_in_output=True, return_num_output_tokens=True)
    told = await triton.infer("tiny", asked, outputs=outputs)
    assert told.as_numpy("text_output").tolist() == [expected.encode()]
    assert told.as_numpy("finish_reason").tolist() == [b"length"]
    assert told.as_numpy("num_output_tokens").tolist() == [24]


async def test_a_stream_brings_new_text_and_says_when_it_is_whole(triton: InferenceServerClient, expected: str) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "tiny", "inputs": tensors(stream=True, return_finish_reason=True), "request_id": "a"}
        yield {"model_name": "tiny", "inputs": tensors(stream=True, parameters={"top_p": 7}), "request_id": "b"}
        yield {"model_name": "tiny", "inputs": tensors(stream=False), "request_id": "c"}

    answers = [each async for each in triton.stream_infer(requests())]
    streamed = [result for result, _ in answers if result is not None and result.get_response().id == "a"]
    assert b"".join(each.as_numpy("text_output")[0] for each in streamed).decode() == expected
    final = [each.get_response().parameters["triton_final_response"].bool_param for each in streamed]
    assert final == [False] * (len(streamed) - 1) + [True]
    assert streamed[-1].as_numpy("finish_reason").tolist() == [b"length"]
    (problem,) = [error for _, error in answers if error is not None]
    assert "top_p" in str(problem)
    assert answers[-1][0].as_numpy("text_output").tolist() == [(PROMPT + expected).encode()]


@pytest.mark.parametrize(
    ("model", "inputs", "named"),
    [
        ("another", tensors(), "this server serves tiny"),
        ("tiny", tensors()[1:], "text_input"),
        ("tiny", tensors(stream=True), "ModelStreamInfer"),
        ("tiny", tensors(parameters={"use_beam_search": True}), "sampling_parameters.use_beam_search"),
        ("tiny", tensors(parameters={"temperature": "hot"}), "sampling_parameters.temperature"),
        ("tiny", tensors(parameters={"\ud800": 1}), "sampling_parameters"),
        ("tiny", tensors(parameters={"temperature": -1}), "temperature"),
        ("tiny", [*tensors(), InferInput("image", [1], "BYTES")], "image"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_is_wrong_is_named(
    triton: InferenceServerClient, model: str, inputs: list[InferInput], named: str
) -> None:
    if inputs[-1].name() == "image":
        inputs[-1].set_data_from_numpy(np.array([b"x"], dtype=object))
    with pytest.raises(InferenceServerException) as refused:
        await triton.infer(model, inputs)
    assert named in refused.value.message()
