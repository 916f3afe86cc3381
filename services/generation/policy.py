"""The policy: which method a request is served with, and why it is another one than was asked for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from services.generation.speculation_request import SpeculationRequest
from services.runtime.errors import FailedPrecondition, NotFound

_BY_WORKLOAD = {
    "single_tenant": "eagle3",
    "many_adapters": "lookahead",
    "rag": "rest",
    "code": "lookahead",
    "structured": "eagle3",
}
_UNDECLARED = "eagle3"
_MISSING = {"eagle3": "no_head", "rest": "no_corpus", "draft": "no_draft_model"}
_INSTEAD = "lookahead"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the server can do at this moment. `halted` are the methods that may not be served on this base."""

    loaded: frozenset[str]
    profile_passed: bool
    halts_known: bool
    halted: frozenset[str]
    max_temperature: float
    off_when_halted: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """What runs. `fallback_reason` is None where nothing stood in the way of what was asked for."""

    requested_method: str
    method: str
    fallback_reason: str | None = None
    head_cid: str | None = None
    k: int | None = None


def decide(asked: SpeculationRequest, temperature: float, now: Circumstances) -> Decision:
    """Raises NotFound for a head that is named and not there, FailedPrecondition (SPEC_DECODE_HALTED) after a halt."""
    if asked.eagle_head is not None:
        raise NotFound("eagle_head", asked.eagle_head, "no head is registered here; leave spec_decode.eagle_head out")
    method, reason = _method(asked, temperature, now)
    if method in now.halted:
        if not now.off_when_halted:
            raise FailedPrecondition(
                f"an audit has halted {method} on this base; ask for method off, or wait for an operator's resume",
                reason="SPEC_DECODE_HALTED",
                metadata={"method": method},
            )
        method, reason = "off", "halted"
    return Decision(asked.method, method, reason, k=None if method == "off" else asked.k)


def _method(asked: SpeculationRequest, temperature: float, now: Circumstances) -> tuple[str, str | None]:
    """The method and the fallback reason, halts left aside."""
    wanted = _preferred(asked.workload) if asked.method == "auto" else asked.method
    if wanted == "off":
        return "off", None
    if temperature > now.max_temperature:
        return "off", "temperature"
    if not now.profile_passed:
        return "off", "profile_unproven"
    if not now.halts_known:
        return "off", "halt_state_unknown"
    if wanted in now.loaded:
        return wanted, None
    if _INSTEAD in now.loaded:
        return _INSTEAD, _MISSING.get(wanted)
    return "off", _MISSING.get(wanted, "not_loaded")


def _preferred(workload: str | None) -> str:
    return _UNDECLARED if workload is None else _BY_WORKLOAD[workload]
