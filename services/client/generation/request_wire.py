"""Converts requests to messages. Refuses values that protobuf cannot carry, under the server's names for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as ProtoMessage

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2, speculation_pb2
from services.client.generation.request import (
    Request,
    SamplingParams,
    SpecDecodeConfig,
    StructuredOutputs,
    Tools,
    refuse,
)

_VERIFY = {"sampled": speculation_pb2.VERIFY_MODE_SAMPLED, "inline": speculation_pb2.VERIFY_MODE_INLINE}
_WORKLOADS = {
    name.removeprefix("WORKLOAD_").lower(): number for name, number in speculation_pb2.Workload.items() if number
}

_EXPECTED = {
    FieldDescriptor.CPPTYPE_INT32: f"a whole number from {-(2**31)} to {2**31 - 1}",
    FieldDescriptor.CPPTYPE_UINT32: f"a whole number from 0 to {2**32 - 1}",
    FieldDescriptor.CPPTYPE_UINT64: f"a whole number from 0 to {2**64 - 1}",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "text in UTF-8",
    FieldDescriptor.CPPTYPE_MESSAGE: "numbers by token id",  # logit_bias, the only map
}
"""Values that a field can carry; the server checks their ranges."""


def structured_outputs_message(asked: StructuredOutputs) -> sampling_pb2.StructuredOutputs:
    """Raises ValueError or TypeError for a value that cannot be sent."""
    kind, message = asked.kind, sampling_pb2.StructuredOutputs(engine=asked.engine)
    if kind == "choice":
        message.choice.SetInParent()
        message.choice.texts.extend(asked.choice or ())
    else:
        setattr(message, kind, asked.text if kind == "json" else getattr(asked, kind))
    return message


def structured_outputs_value(message: sampling_pb2.StructuredOutputs) -> StructuredOutputs | None:
    """None for a constraint that this client does not know."""
    kind = message.WhichOneof("constraint")
    if kind is None:
        return None
    value: Any = list(message.choice.texts) if kind == "choice" else getattr(message, kind)
    return StructuredOutputs(**{kind: value}, engine=message.engine)


def generate_request(request: Request, spec_decode: SpecDecodeConfig | None) -> pb.GenerateRequest:
    """Raises InvalidArgument for a value that cannot be sent (a negative k, a lone surrogate, two prompts)."""
    message = pb.GenerateRequest()
    for name in ("model", "request_id", "tenant", "adapter", "nonce", "prediction", "priority", "suffix"):
        _set(message, name, getattr(request, name))
    _set_input(message, request)
    message.sampling.CopyFrom(sampling_message(request.params))
    if request.workload is not None:
        message.workload = _choice(_WORKLOADS, request.workload, "workload")
    if spec_decode is not None:
        message.spec_decode.CopyFrom(spec_decode_message(spec_decode))
    return message


def sampling_message(sampling: SamplingParams) -> sampling_pb2.SamplingParams:
    """Fields that are None stay unset."""
    message = sampling_pb2.SamplingParams()
    for each in fields(sampling):
        value = getattr(sampling, each.name)
        path = f"sampling.{each.name}"
        if each.name == "logit_bias":
            _refusing(message, each.name, path, lambda given: message.logit_bias.update(dict(given)), value)
        elif each.name in ("stop", "stop_token_ids"):
            # A string is a sequence of strings too, but stop="END" does not mean E, N and D.
            given = (value,) if isinstance(value, str) else value
            _refusing(message, each.name, path, getattr(message, each.name).extend, given)
        elif each.name == "structured_outputs":
            _set_constraint(message, sampling.constraint, path)
        else:
            _set(message, each.name, value, "sampling.")
    return message


def _set_constraint(message: sampling_pb2.SamplingParams, asked: StructuredOutputs | None, path: str) -> None:
    if asked is None:
        return
    try:
        message.structured_outputs.CopyFrom(structured_outputs_message(asked))
    except (ValueError, TypeError, RecursionError) as error:
        refuse(path, f"cannot be sent: {error}")


def spec_decode_message(config: SpecDecodeConfig) -> speculation_pb2.SpecDecodeConfig:
    """Values are sent as they are: the server refuses wrong ones."""
    message = speculation_pb2.SpecDecodeConfig()
    for name in ("method", "eagle_head", "k", "accept_threshold"):
        _set(message, name, getattr(config, name), "spec_decode.")
    if config.verify is not None:
        message.verify = _choice(_VERIFY, config.verify, "spec_decode.verify")
    path, given = "spec_decode.parameters", config.parameters
    _refusing(message, "parameters", path, lambda each: message.parameters.update(dict(each)), given)
    return message


def tokenize_request(request: Request, add_special_tokens: bool | None) -> pb.TokenizeRequest:
    """The request's model, and its prompt or messages. Raises InvalidArgument as `generate_request` does."""
    message = pb.TokenizeRequest()
    _set(message, "model", request.model)
    _set(message, "add_special_tokens", add_special_tokens)
    if request.token_ids is not None:
        refuse("token_ids", "are tokens already; expected prompt or messages")
    _set_input(message, request)
    return message


def detokenize_request(token_ids: Sequence[int], model: str | None) -> pb.DetokenizeRequest:
    """Raises InvalidArgument for ids that cannot be sent."""
    message = pb.DetokenizeRequest()
    _set(message, "model", model)
    _refusing(message, "token_ids", "token_ids", message.token_ids.extend, token_ids)
    return message


def _set_input(message: Any, request: Request) -> None:
    """`message` is a GenerateRequest or a TokenizeRequest."""
    given = [name for name in ("prompt", "messages", "token_ids") if getattr(request, name) is not None]
    if len(given) > 1:
        refuse("prompt", f"expected one of prompt, messages and token_ids, got {' and '.join(given)}")
    _set(message, "prompt", request.prompt)
    if request.messages is not None:
        message.messages.SetInParent()
        for place, turn in enumerate(request.turns):
            added = message.messages.messages.add()
            for name in ("role", "content", "tool_call_id", "reasoning_content"):
                _set(added, name, getattr(turn, name), f"messages[{place}].")
            for number, call in enumerate(turn.calls):
                called = added.tool_calls.add()
                for name in ("id", "name", "arguments"):
                    _set(called, name, getattr(call, name), f"messages[{place}].tool_calls[{number}].")
        _set_tools(message.messages, request.tool_set)
        _set(message.messages, "continue_final_message", request.continue_final_message)
    elif request.tools is not None:
        refuse("tools", "belong to messages")
    elif request.continue_final_message:
        refuse("continue_final_message", "belongs to messages")
    if request.token_ids is not None:
        message.token_ids.SetInParent()
        _refusing(message.token_ids, "ids", "token_ids", message.token_ids.ids.extend, request.token_ids)


def _set_tools(message: pb.ChatMessages, tools: Tools | None) -> None:
    if tools is None:
        return
    for place, tool in enumerate(tools.given):
        added, path = message.tools.add(), f"messages.tools[{place}]."
        for name in ("name", "description", "strict"):
            _set(added, name, getattr(tool, name), path)
        try:
            added.parameters = tool.schema
        except (ValueError, TypeError, RecursionError) as error:
            refuse(path + "parameters", f"cannot be sent: {error}")
    message.tool_choice = pb.ToolChoice.Value(f"TOOL_CHOICE_{tools.choice.upper()}")
    _refusing(message, "allowed_tools", "messages.allowed_tools", message.allowed_tools.extend, tools.allowed)
    _set(message, "parallel_tool_calls", tools.parallel, "messages.")


def _set(message: ProtoMessage, name: str, value: object, prefix: str = "") -> None:
    if value is not None:
        _refusing(message, name, prefix + name, lambda given: setattr(message, name, given), value)


def _refusing(message: ProtoMessage, name: str, path: str, assign: Callable[[Any], object], value: object) -> None:
    """Assign to the message's field; `path` names it in errors."""
    try:
        assign(value)
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        expected = _EXPECTED[message.DESCRIPTOR.fields_by_name[name].cpp_type]
        is_short = isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= 128)
        problem = f"is {value}" if is_short else f"cannot be sent: {error}"
        refuse(path, f"{problem}; expected {expected}")


def _choice(known: dict[str, Any], value: str, path: str) -> Any:
    if not isinstance(value, str) or value not in known:
        refuse(path, f"expected one of {', '.join(known)}, got {value!r}")
    return known[value]
