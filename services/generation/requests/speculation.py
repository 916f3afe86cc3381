"""What a request asks for in the way of speculation, read from the wire and checked."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import speculation_pb2
from ledger.documents.spec_decode import REQUESTABLE_METHODS
from services.runtime.errors import InvalidArgument

MAX_K = 16
_HEAD = re.compile(r"cidv1:sha256:[0-9a-f]{64}|[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@sha256:[0-9a-f]{1,64})?")
_SHAPES = {
    "lookahead": {"window": (0, 32), "ngram": (2, 16), "guesses": (0, 32)},
    "eagle3": {"tree_width": (1, 16), "tree_tokens": (1, 64)},
}  # of methods: the message's members with their ranges
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
    window: int | None = None
    ngram: int | None = None
    guesses: int | None = None
    tree_width: int | None = None
    tree_tokens: int | None = None


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
        **_shape(config, method, "lookahead"),
        **_shape(config, method, "eagle3"),
    )


def _method(config: speculation_pb2.SpecDecodeConfig) -> str:
    default = "eagle3" if config.HasField("eagle_head") else "auto"
    method = config.method if config.HasField("method") else default
    if method not in REQUESTABLE_METHODS:
        known = ", ".join(sorted(REQUESTABLE_METHODS))
        raise InvalidArgument("spec_decode.method", f"{method!r} is not a method; expected one of {known}")
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


def _shape(config: speculation_pb2.SpecDecodeConfig, method: str, of: str) -> dict[str, int]:
    """What the request says about the drafts of method `of`, which must be able to run."""
    if not config.HasField(of):  # type: ignore[arg-type]
        return {}
    if method not in (of, "auto"):
        raise InvalidArgument(f"spec_decode.{of}", f"goes with method {of} or auto only, not with {method}")
    given = {descriptor.name: value for descriptor, value in getattr(config, of).ListFields()}
    return {name: _within(f"{of}.{name}", value, *_SHAPES[of][name]) for name, value in given.items()}


def _within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidArgument(f"spec_decode.{name}", f"is {value}; expected a whole number from {low} to {high}")
    return value
