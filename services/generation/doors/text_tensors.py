"""Tensors of vLLM's backend for Triton, in requests and answers: texts, and JSON of sampling parameters."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2
from services.generation.doors.open_inference import MESSAGES
from services.generation.engine.text.json_text import read_json
from services.runtime.errors import InvalidArgument

_FLAGS = ("stream", "exclude_input_in_output", "return_finish_reason", "return_num_input_tokens",
          "return_num_output_tokens")  # fmt: skip
INPUTS = {"text_input": "BYTES", **dict.fromkeys(_FLAGS, "BOOL"), "sampling_parameters": "BYTES"}
OUTPUTS = {
    "text_output": "BYTES",
    "finish_reason": "BYTES",
    "num_input_tokens": "UINT32",
    "num_output_tokens": "UINT32",
}
_MAX_TOKENS = 16  # vLLM's default
_RENAMED = {"lora_name": "adapter"}
_INTEGERS = (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)


@dataclass(frozen=True, slots=True)
class Asked:
    """One inference. `told`: the outputs that it wants beside the text."""

    request: pb.GenerateRequest
    stream: bool
    prepend: bool
    told: tuple[str, ...]


def read(message: Any) -> Asked:
    """Of a ModelInferRequest. Raises InvalidArgument naming the tensor."""
    given = _values(message)
    if "text_input" not in given:
        raise InvalidArgument("text_input", "is missing; expected a BYTES tensor of one text")
    stream = bool(given.get("stream", False))
    prepend = not given.get("exclude_input_in_output", stream)
    if stream and prepend:
        raise InvalidArgument("exclude_input_in_output", "is false; a stream brings what is new, never the input")
    request = pb.GenerateRequest(prompt=_text("text_input", given["text_input"]))
    request.sampling.temperature, request.sampling.max_tokens = 1.0, _MAX_TOKENS
    _read_parameters(request, _text("sampling_parameters", given.get("sampling_parameters", b"{}")))
    told = [name.removeprefix("return_") for name in _FLAGS if name.startswith("return_") and given.get(name)]
    told += [each.name for each in message.outputs if each.name != "text_output"]
    if unknown := next((name for name in told if name not in OUTPUTS), None):
        raise InvalidArgument("outputs", f"names {unknown!r}; expected some of {', '.join(OUTPUTS)}")
    return Asked(request, stream, prepend, tuple(dict.fromkeys(told)))


def response(message: Any, texts: Sequence[str], told: Mapping[str, Sequence[Any]], *, final: bool) -> Any:
    """A ModelInferResponse to `message`: a text for each choice, and other outputs by name."""
    answer = MESSAGES["ModelInferResponse"](model_name=message.model_name, model_version="1", id=message.id)
    answer.parameters["triton_final_response"].bool_param = final
    for name, values in {"text_output": texts, **told}.items():
        datatype = OUTPUTS[name]
        answer.outputs.add(name=name, datatype=datatype, shape=[len(values)])
        pack = _bytes if datatype == "BYTES" else struct.Struct("<I").pack
        answer.raw_output_contents.append(b"".join(pack(value) for value in values))
    return answer


def _bytes(text: str) -> bytes:
    """As Triton packs texts: the length in four bytes, then UTF-8."""
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _values(message: Any) -> dict[str, Any]:
    """Each tensor has one element: in the raw contents, in their order, or in its own."""
    raw, values = list(message.raw_input_contents), dict[str, Any]()
    if raw and len(raw) != len(message.inputs):
        raise InvalidArgument("raw_input_contents", f"has {len(raw)} entries for {len(message.inputs)} inputs")
    for place, tensor in enumerate(message.inputs):
        name = tensor.name
        if (datatype := INPUTS.get(name)) is None:
            raise InvalidArgument(name, f"is no input; expected some of {', '.join(INPUTS)}")
        if tensor.datatype != datatype or list(tensor.shape) not in ([1], [1, 1]):
            raise InvalidArgument(name, f"expected one element of {datatype}, shape [1]")
        own = tensor.contents.bytes_contents if datatype == "BYTES" else tensor.contents.bool_contents
        found = _unpacked(raw[place], datatype) if raw else own[0] if len(own) == 1 else None
        if found is None:
            raise InvalidArgument(name, f"does not hold one element of {datatype}")
        values[name] = found
    return values


def _unpacked(data: bytes, datatype: str) -> Any:
    """None for bytes that are not one element."""
    if datatype == "BOOL":
        return data != b"\0" if len(data) == 1 else None
    return data[4:] if len(data) >= 4 and struct.unpack_from("<I", data)[0] == len(data) - 4 else None


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(name, "is not UTF-8") from None


def _read_parameters(request: pb.GenerateRequest, text: str) -> None:
    try:
        given = read_json(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise InvalidArgument("sampling_parameters", "expected a JSON object, as text")
    for name, value in given.items():
        path = f"sampling_parameters.{name}"
        try:
            _set(request, name, value)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise InvalidArgument(path, f"cannot be read: {error}") from None


def _set(request: pb.GenerateRequest, name: str, value: Any) -> None:
    """Numbers may come as text: vLLM's backend takes them so."""
    sampling, fields = request.sampling, sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name
    if name in _RENAMED:
        setattr(request, _RENAMED[name], value)
    elif name in ("stop", "stop_token_ids"):
        getattr(sampling, name).extend([value] if isinstance(value, str) else value)
    elif name == "logit_bias":
        sampling.logit_bias.update({int(token): float(bias) for token, bias in dict(value).items()})
    elif name in fields and fields[name].message_type is None and name != "logprobs":
        kind = fields[name].cpp_type
        if isinstance(value, str) and kind != FieldDescriptor.CPPTYPE_BOOL:
            value = int(value) if kind in _INTEGERS else float(value)
        setattr(sampling, name, value)
    else:
        raise ValueError("there is no such parameter here")
