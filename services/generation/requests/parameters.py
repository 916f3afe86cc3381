"""Parameters of a request on the wire: sampling, speculation, constraints on the output."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import ledger.documents.receipt
from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2, speculation_pb2
from ledger.documents.receipt import StructuredOutputsPart, ThoughtsPart
from ledger.encoding.canonical import canonical
from ledger.encoding.document import Seed
from services.generation.drafting.method_spec import MethodSpec
from services.generation.drafting.methods import METHODS
from services.generation.engine.request import SamplingParams, StructuredOutputs, ThoughtSyntax, grammar_engine
from services.generation.engine.text.grammar import MAX_CHOICES as MAX_TEXTS
from services.runtime.errors import FailedPrecondition, InvalidArgument

MAX_CHOICES = 16
MAX_STOP_TOKEN_IDS = 64
MAX_BIASES = 300  # so that a receipt, which lists them all, fits into an entry of the ledger
_SEED_BITS = 53  # every JSON reader keeps a drawn seed exactly
MAX_K = 16
_HEAD = re.compile(r"cidv1:sha256:[0-9a-f]{64}|[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@sha256:[0-9a-f]{1,64})?")
_WORKLOADS = {
    number: None if number == 0 else name.removeprefix("WORKLOAD_").lower()
    for name, number in speculation_pb2.Workload.items()
}
_FIELD = "sampling.structured_outputs"


def read_sampling(message: sampling_pb2.SamplingParams, room: int) -> SamplingParams:
    """The engine's parameters with defaults filled in. The lengths of `stop_token_ids`, `logit_bias` and `choice` are
    checked here, before they are read, all other ranges by the engine.

    `room`: tokens of the context that are left for output. max_tokens is 128 by default, or `room` if that is less. A
    missing seed is drawn, unless nothing is random.
    """
    _check_lists(message)
    given = {
        field.name: _read_field(message, field.name)
        for field in fields(SamplingParams)
        if _is_given(message, field.name)
    }
    given.setdefault("max_tokens", max(1, min(SamplingParams().max_tokens, room)))
    if given.get("temperature", 0.0) != 0.0:
        given.setdefault("seed", secrets.randbits(_SEED_BITS))
    return SamplingParams(**given)


def read_choices(message: sampling_pb2.SamplingParams) -> int:
    """The number of choices of the request."""
    count = message.n if message.HasField("n") else 1
    if not 1 <= count <= MAX_CHOICES:
        raise InvalidArgument("sampling.n", f"is {count}; expected a whole number from 1 to {MAX_CHOICES}")
    return count


def sampling_message(sampling: SamplingParams, choices: int) -> sampling_pb2.SamplingParams:
    """The message of these parameters. Fields that are None or empty stay unset."""
    message = sampling_pb2.SamplingParams(n=choices)
    for each in fields(sampling):
        value = getattr(sampling, each.name)
        if each.name == "logit_bias":
            message.logit_bias.update(dict(value))
        elif each.name in ("stop", "stop_token_ids"):
            getattr(message, each.name).extend(value)
        elif isinstance(value, StructuredOutputs):
            message.structured_outputs.CopyFrom(structured_outputs_message(value))
        elif value is not None:
            setattr(message, each.name, value)
    return message


def receipt_sampling(
    sampling: SamplingParams,
    choices: int,
    choice: int,
    prompt_salt: bytes,
    engine: str | None = None,
    thoughts: ThoughtSyntax | None = None,
) -> ledger.documents.receipt.Sampling:
    """The sampling in a receipt: without logprobs, which change no token, and with a commitment to the constraint,
    which another `engine` may have applied. `thoughts`: in which no stop string counted.
    """
    values = {field.name: getattr(sampling, field.name) for field in fields(sampling) if field.name != "logprobs"}
    values["seed"] = Seed(values["seed"])
    if (source := sampling.structured_outputs) is not None:
        part = StructuredOutputsPart.of(source.kind, source.text, prompt_salt, engine or grammar_engine())
        values["structured_outputs"] = part
    if thoughts is not None:
        values["thoughts"] = ThoughtsPart(thoughts.open, thoughts.closes, thoughts.begun)
    return ledger.documents.receipt.Sampling(**values, n=choices, choice=choice)


def _is_given(message: sampling_pb2.SamplingParams, name: str) -> bool:
    if name in ("stop", "stop_token_ids", "logit_bias"):
        return bool(getattr(message, name))
    return message.HasField(name)  # type: ignore[arg-type]


def _read_field(message: sampling_pb2.SamplingParams, name: str) -> Any:
    value = getattr(message, name)
    if name == "structured_outputs":
        return read_structured_outputs(value)
    if name == "logit_bias":
        return tuple(sorted((token, float(bias)) for token, bias in value.items()))
    return tuple(value) if name in ("stop", "stop_token_ids") else value


def _check_lists(message: sampling_pb2.SamplingParams) -> None:
    for name, most in (("stop_token_ids", MAX_STOP_TOKEN_IDS), ("logit_bias", MAX_BIASES)):
        if len(getattr(message, name)) > most:
            raise InvalidArgument(f"sampling.{name}", f"has {len(getattr(message, name))} entries, at most {most}")
    texts = message.structured_outputs.choice.texts
    if len(texts) > MAX_TEXTS:
        raise InvalidArgument(f"{_FIELD}.choice", f"has {len(texts)} texts; expected 1 to {MAX_TEXTS}")


@dataclass(frozen=True, slots=True)
class SpeculationRequest:
    """Speculation as requested; None is unset. `verify_inline`: replay with speculation off before signing."""

    method: str = "auto"
    eagle_head: str | None = None
    k: int | None = None
    verify_inline: bool | None = None
    workload: str | None = None
    parameters: Mapping[str, int] = field(default_factory=dict)


def read_speculation(request: pb.GenerateRequest, methods: Sequence[MethodSpec] = METHODS) -> SpeculationRequest:
    """Raises InvalidArgument naming the field, reason LOSSY_ACCEPTANCE for a threshold."""
    config = request.spec_decode
    if request.workload not in _WORKLOADS:
        raise InvalidArgument("workload", f"expected a value of kolm.generation.v1.Workload, got {request.workload}")
    if config.accept_threshold != 0.0:  # NaN is unequal too
        raise InvalidArgument(
            "spec_decode.accept_threshold",
            f"is {config.accept_threshold}; expected 0.0: anything else accepts tokens that the model did not choose",
            reason="LOSSY_ACCEPTANCE",
        )
    method = _read_method(config, methods)
    return SpeculationRequest(
        method=method,
        eagle_head=_read_head(config, method, methods),
        k=_check_range("k", config.k, 1, MAX_K) if config.HasField("k") else None,
        verify_inline=_read_verify_mode(config),
        workload=_WORKLOADS[request.workload],
        parameters=_read_parameters(config, method, methods),
    )


def _read_method(config: speculation_pb2.SpecDecodeConfig, methods: Sequence[MethodSpec]) -> str:
    method = config.method if config.HasField("method") else "auto"
    known = ("auto", "off", *(spec.name for spec in methods))
    if method not in known:
        raise InvalidArgument("spec_decode.method", f"{method!r} is not a method; expected one of {', '.join(known)}")
    return method


def _read_head(config: speculation_pb2.SpecDecodeConfig, method: str, methods: Sequence[MethodSpec]) -> str | None:
    if not config.HasField("eagle_head"):
        return None
    kinds = [spec.name for spec in methods if spec.has_heads]
    if not kinds:
        raise InvalidArgument("spec_decode.eagle_head", "is chosen by the engine behind this server; leave it out")
    if config.HasField("method") and method not in kinds:
        reason = f"cannot be combined with method {method}; set method to {' or '.join(kinds)}, or leave it out"
        raise InvalidArgument("spec_decode.eagle_head", reason)
    if _HEAD.fullmatch(config.eagle_head) is None:
        raise InvalidArgument(
            "spec_decode.eagle_head", "expected cidv1:sha256:<64 hex digits>, <name>@sha256:<hex prefix> or <name>"
        )
    return config.eagle_head


def _read_verify_mode(config: speculation_pb2.SpecDecodeConfig) -> bool | None:
    if not config.HasField("verify"):
        return None
    if config.verify not in (speculation_pb2.VERIFY_MODE_SAMPLED, speculation_pb2.VERIFY_MODE_INLINE):
        raise InvalidArgument("spec_decode.verify", "expected VERIFY_MODE_SAMPLED or VERIFY_MODE_INLINE")
    return config.verify == speculation_pb2.VERIFY_MODE_INLINE


def _read_parameters(
    config: speculation_pb2.SpecDecodeConfig, method: str, methods: Sequence[MethodSpec]
) -> dict[str, int]:
    """Parameters of the requested method, or of any method if the server chooses."""
    known = {each.name: each for spec in methods if method in (spec.name, "auto") for each in spec.parameters}
    for name, value in config.parameters.items():
        if name not in known:
            names = ", ".join(known) or "none"
            raise InvalidArgument(f"spec_decode.parameters.{name}", f"is not a parameter of {method}; it has {names}")
        _check_range(f"parameters.{name}", value, known[name].least, known[name].most)
    return dict(config.parameters)


def _check_range(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidArgument(f"spec_decode.{name}", f"is {value}; expected a whole number from {low} to {high}")
    return value


def read_structured_outputs(message: sampling_pb2.StructuredOutputs) -> StructuredOutputs:
    """Raises InvalidArgument, FailedPrecondition (UNREPLAYABLE) if it names another library than this server's."""
    if message.engine not in ("", grammar_engine()):
        raise FailedPrecondition(
            f"{_FIELD}.engine: this server uses the library {grammar_engine()}, not {message.engine}",
            reason="UNREPLAYABLE",
            metadata={"field": f"{_FIELD}.engine"},
        )
    match message.WhichOneof("constraint"):
        case "json" | "regex" | "grammar" as kind:
            return StructuredOutputs(kind, getattr(message, kind))
        case "choice":
            return StructuredOutputs("choice", canonical(list(message.choice.texts)).decode())
        case "json_object" if message.json_object:
            return StructuredOutputs("json_object")
    raise InvalidArgument(_FIELD, "set exactly one of json, regex, choice, grammar, json_object (true)")


def structured_outputs_message(source: StructuredOutputs) -> sampling_pb2.StructuredOutputs:
    """The message of a constraint, with the name of the library."""
    message = sampling_pb2.StructuredOutputs(engine=grammar_engine())
    if source.kind == "choice":
        message.choice.texts.extend(json.loads(source.text))
    elif source.kind == "json_object":
        message.json_object = True
    else:
        setattr(message, source.kind, source.text)
    return message
