"""Messages of the Open Inference Protocol (KServe v2, package `inference`), with the names and numbers that it fixes.

Their descriptors lie in a pool of their own: a process may hold Triton's client too, whose generated code has messages
of the same names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "inference.GRPCInferenceService"

_TENSOR = "name=1 datatype=2 shape=3*int64"
_INFER = "model_name=1 model_version=2 id=3 parameters=4%InferParameter"
_MESSAGES: Mapping[str, str] = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live=1:bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready=1:bool",
    "ModelReadyRequest": "name=1 version=2",
    "ModelReadyResponse": "ready=1:bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name=1 version=2 extensions=3*string",
    "ModelMetadataRequest": "name=1 version=2",
    "ModelMetadataResponse": "name=1 versions=2*string platform=3 inputs=4*.TensorMetadata outputs=5*.TensorMetadata",
    "ModelMetadataResponse.TensorMetadata": _TENSOR,
    "ModelConfigRequest": "name=1 version=2",
    "ModelConfigResponse": "config=1:ModelConfig",
    "ModelConfig": "name=1 platform=2 backend=17 max_batch_size=4:int32 input=5*ModelInput output=6*ModelOutput "
    "model_transaction_policy=19:ModelTransactionPolicy",
    "ModelInput": "name=1 data_type=2:int32 dims=4*int64 optional=8:bool",  # an enum, as a number the same on the wire
    "ModelOutput": "name=1 data_type=2:int32 dims=3*int64",
    "ModelTransactionPolicy": "decoupled=1:bool",
    "InferParameter": "bool_param=1:bool int64_param=2:int64 string_param=3 double_param=4:double",
    "InferTensorContents": "bool_contents=1*bool int_contents=2*int32 int64_contents=3*int64 uint_contents=4*uint32 "
    "uint64_contents=5*uint64 fp32_contents=6*float fp64_contents=7*double bytes_contents=8*bytes",
    "ModelInferRequest": f"{_INFER} inputs=5*.InferInputTensor outputs=6*.InferRequestedOutputTensor "
    "raw_input_contents=7*bytes",
    "ModelInferRequest.InferInputTensor": f"{_TENSOR} parameters=4%InferParameter contents=5:InferTensorContents",
    "ModelInferRequest.InferRequestedOutputTensor": "name=1 parameters=2%InferParameter",
    "ModelInferResponse": f"{_INFER} outputs=5*.InferOutputTensor raw_output_contents=6*bytes",
    "ModelInferResponse.InferOutputTensor": f"{_TENSOR} parameters=4%InferParameter contents=5:InferTensorContents",
    "ModelStreamInferResponse": "error_message=1 infer_response=2:ModelInferResponse",
}
"""Fields as `name=number`, then `:type` (text without one), `*type` repeated, `%type` a map; `.type` is nested."""

_FIELD = descriptor_pb2.FieldDescriptorProto


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="kolm/open_inference.proto", package="inference", syntax="proto3")
    made: dict[str, descriptor_pb2.DescriptorProto] = {}
    for path, fields in _MESSAGES.items():
        outer, _, name = path.rpartition(".")
        made[path] = (made[outer].nested_type if outer else file.message_type).add(name=name)
        for field in fields.split():
            _add(made[path], path, field)
    return file


def _add(message: descriptor_pb2.DescriptorProto, path: str, field: str) -> None:
    named, kind = field, "string"
    repeated = mapped = False
    for sign in ":*%":
        if sign in field:
            named, _, kind = field.partition(sign)
            repeated, mapped = sign == "*", sign == "%"
    name, _, number = named.partition("=")
    if mapped:
        entry = message.nested_type.add(name=name.title() + "Entry")
        entry.options.map_entry = True
        _add(entry, "", "key=1")
        _add(entry, "", f"value=2:{kind}")
        kind, repeated = f".{entry.name}", True
    added = message.field.add(name=name, number=int(number))
    added.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    if kind[0] == "." or kind[0].isupper():
        added.type = _FIELD.TYPE_MESSAGE
        owner = f"{path.partition('.')[0]}." if kind.count(".") and not mapped else f"{path}." if mapped else ""
        added.type_name = f".inference.{owner}{kind.removeprefix('.')}"
    else:
        added.type = _FIELD.Type.Value(f"TYPE_{kind.upper()}")


def _classes() -> Iterator[tuple[str, Any]]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    for name in _MESSAGES:
        yield name, message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{name}"))


MESSAGES: Mapping[str, Any] = dict(_classes())
"""Classes by name."""
