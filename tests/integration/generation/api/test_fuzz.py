"""Random messages to every RPC on a generation server's port, other engines' included: no bug, no loss."""

from __future__ import annotations

import asyncio

from google.protobuf.message import Message
from smg_grpc_proto.generated import vllm_engine_pb2

from kolm.generation.v1 import generation_pb2
from tests.fuzzing import flood
from tests.integration.generation.deployment import Deployment, asking

SERVICES = [
    generation_pb2.DESCRIPTOR.services_by_name["GenerationService"],
    vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"],
]
MODEL = "tiny"
SECONDS = 0.3  # for a call whose message means something: it may ask for many tokens


async def test_random_messages_are_answered_or_refused_and_no_receipt_is_lost(deployment: Deployment) -> None:
    stub = await deployment.start_generation(model_name=MODEL, vllm_engine=True)
    before = (await stub.Generate(asking(max_tokens=8))).choices[0].token_ids
    address = deployment.generation_address
    await asyncio.to_thread(flood, address, *SERVICES, seconds=SECONDS, changed=of_our_model)
    after = (await stub.Generate(asking(max_tokens=8))).choices[0]
    assert after.token_ids == before
    assert after.receipt.receipt_id


def of_our_model(message: Message) -> Message:
    """Another model's name would be the end of almost every request."""
    for name in {"model"} & set(message.DESCRIPTOR.fields_by_name):
        setattr(message, name, MODEL)
    return message
