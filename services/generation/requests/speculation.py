"""The request's choices about speculation, read from the wire and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import speculation_pb2
from services.generation.drafting.methods import METHODS
from services.runtime.errors import InvalidArgument

MAX_K = 16
_HEAD = re.compile(r"cidv1:sha256:[0-9a-f]{64}|[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@sha256:[0-9a-f]{1,64})?")
_WORKLOADS = {
    speculation_pb2.WORKLOAD_UNSPECIFIED: None,
    speculation_pb2.WORKLOAD_SINGLE_TENANT: "single_tenant",
    speculation_pb2.WORKLOAD_MANY_ADAPTERS: "many_adapters",
    speculation_pb2.WORKLOAD_RAG: "rag",
    speculation_pb2.WORKLOAD_CODE: "code",
    speculation_pb2.WORKLOAD_STRUCTURED: "structured",
}


@dataclass(frozen=True, slots=True)
class SpeculationRequest:
    """`None` is what the caller left open. `verify_inline`: replay with speculation off before signing."""

    method: str = "auto"
    eagle_head: str | None = None
    k: int | None = None
    verify_inline: bool | None = None
    workload: str | None = None
    parameters: Mapping[str, int] = field(default_factory=dict)


def read_speculation(request: pb.GenerateRequest) -> SpeculationRequest:
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
    method = _method(config)
    return SpeculationRequest(
        method=method,
        eagle_head=_head(config, method),
        k=_within("k", config.k, 1, MAX_K) if config.HasField("k") else None,
        verify_inline=_verify(config),
        workload=_WORKLOADS[request.workload],
        parameters=_parameters(config, method),
    )


def _method(config: speculation_pb2.SpecDecodeConfig) -> str:
    default = "eagle3" if config.HasField("eagle_head") else "auto"
    method = config.method if config.HasField("method") else default
    known = ("auto", "off", *(spec.name for spec in METHODS))
    if method not in known:
        raise InvalidArgument("spec_decode.method", f"{method!r} is not a method; expected one of {', '.join(known)}")
    return method


def _head(config: speculation_pb2.SpecDecodeConfig, method: str) -> str | None:
    if not config.HasField("eagle_head"):
        return None
    if method != "eagle3":
        raise InvalidArgument("spec_decode.eagle_head", f"goes with method eagle3 only, not with {method}")
    if _HEAD.fullmatch(config.eagle_head) is None:
        raise InvalidArgument(
            "spec_decode.eagle_head", "expected cidv1:sha256:<64 hex digits>, <name>@sha256:<hex prefix> or <name>"
        )
    return config.eagle_head


def _verify(config: speculation_pb2.SpecDecodeConfig) -> bool | None:
    if not config.HasField("verify"):
        return None
    if config.verify not in (speculation_pb2.VERIFY_MODE_SAMPLED, speculation_pb2.VERIFY_MODE_INLINE):
        raise InvalidArgument("spec_decode.verify", "expected VERIFY_MODE_SAMPLED or VERIFY_MODE_INLINE")
    return config.verify == speculation_pb2.VERIFY_MODE_INLINE


def _parameters(config: speculation_pb2.SpecDecodeConfig, method: str) -> dict[str, int]:
    """Those of the method that was asked for, or of any where the server chooses."""
    known = {each.name: each for spec in METHODS if method in (spec.name, "auto") for each in spec.parameters}
    for name, value in config.parameters.items():
        if name not in known:
            names = ", ".join(known) or "none"
            raise InvalidArgument(f"spec_decode.parameters.{name}", f"is no parameter of {method}; it has {names}")
        _within(f"parameters.{name}", value, known[name].least, known[name].most)
    return dict(config.parameters)


def _within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidArgument(f"spec_decode.{name}", f"is {value}; expected a whole number from {low} to {high}")
    return value
