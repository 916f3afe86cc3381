"""Random messages to every RPC: fields set or not, numbers at their edges, texts and bytes of no meaning."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from kolm.telemetry.v1 import telemetry_pb2

EVERYWHERE: list[ServiceDescriptor] = [
    telemetry_pb2.DESCRIPTOR.services_by_name["TelemetryService"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
]
"""The services of every gRPC server in addition to its own."""

_BUGS = ("INTERNAL", "UNKNOWN", "DATA_LOSS")
_CALLS = 20
_STREAM_SECONDS = 0.3  # a stream may have no end

_F = FieldDescriptor
_EDGES = (0, 1, -1, 2, 7, 1000, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63), 2**64 - 1)
_TEXTS = (
    "",
    "a",
    "sha256:",
    "cidv1:sha256:" + "0" * 64,
    "\x00",
    "é" * 300,
    "../../etc/passwd",
    "' or 1=1 --",
    "9" * 40,
)
_BYTES = (b"", b"{}", b"\xff" * 33, bytes(32), b'{"payload":"e30=","payloadType":"x","signatures":[]}')


def _random_message(kind: type[Message], random: Random, depth: int = 3) -> Message:
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if random.random() < 0.4 or (field.message_type and depth == 0):
            continue
        if field.message_type and field.message_type.GetOptions().map_entry:
            continue
        values = [_value(field, random, depth) for _ in range(random.randint(1, 3) if field.is_repeated else 1)]
        if field.message_type:
            for value in values:
                target = getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)
                target.CopyFrom(value)
        elif field.is_repeated:
            getattr(message, field.name).extend(values)
        else:
            setattr(message, field.name, values[0])
    return message


def _value(field: FieldDescriptor, random: Random, depth: int) -> Any:
    if field.message_type:
        return _random_message(GetMessageClass(field.message_type), random, depth - 1)
    if field.cpp_type == _F.CPPTYPE_STRING:
        return random.choice(_TEXTS if field.type == _F.TYPE_STRING else _BYTES)
    if field.cpp_type == _F.CPPTYPE_BOOL:
        return random.random() < 0.5
    if field.cpp_type in (_F.CPPTYPE_FLOAT, _F.CPPTYPE_DOUBLE):
        return random.choice((0.0, -1.0, 0.5, 1e30, float("inf"), float("nan")))
    if field.cpp_type == _F.CPPTYPE_ENUM:
        return random.choice((*(value.number for value in field.enum_type.values), 99))
    bits = 32 if field.cpp_type in (_F.CPPTYPE_INT32, _F.CPPTYPE_UINT32) else 64
    unsigned = field.cpp_type in (_F.CPPTYPE_UINT32, _F.CPPTYPE_UINT64)
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return random.choice([edge for edge in _EDGES if low <= edge <= high])


def flood(
    address: str,
    *services: ServiceDescriptor,
    seconds: float = 60.0,
    changed: Callable[[Message], Message] = lambda message: message,
) -> None:
    """Twenty calls of every RPC, of these services and of EVERYWHERE; of a quarter the messages are cut short.

    A call ends after `seconds`, a stream after 0.3. Raises AssertionError if an answer is a bug or the server has
    more services.
    """
    random = Random(1)
    flooded = (*services, *EVERYWHERE)
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        listed = ProtoReflectionDescriptorDatabase(channel).get_services()
        assert set(listed) == {service.full_name for service in flooded}
        for method in (method for service in flooded for method in service.methods):
            kind = GetMessageClass(method.input_type)
            for number in range(_CALLS):
                whole = [changed(_random_message(kind, random)).SerializeToString() for _ in range(3)]
                sent = [data[: len(data) // 2] for data in whole] if number % 4 == 3 else whole
                code = _answer_to(channel, method, sent, _STREAM_SECONDS if method.server_streaming else seconds)
                assert code.name not in _BUGS, (method.full_name, sent)


def _answer_to(channel: Any, method: MethodDescriptor, requests: Sequence[bytes], seconds: float) -> grpc.StatusCode:
    """The status of one call; of a server's stream that does not end, DEADLINE_EXCEEDED or CANCELLED."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    sent: Any = iter(requests) if method.client_streaming else requests[0]
    kinds = ("stream" if method.client_streaming else "unary", "stream" if method.server_streaming else "unary")
    call = getattr(channel, "_".join(kinds))(path)
    try:
        if not method.server_streaming:
            call(sent, timeout=seconds)
        else:
            for _ in call(sent, timeout=seconds):
                pass
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK
