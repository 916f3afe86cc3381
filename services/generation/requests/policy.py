"""The policy: which method a request is served with, and why it is another one than was asked for. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ledger.documents.halt import Scope
from services.generation.heads.served_heads import HeadState, ServedHead
from services.generation.requests.speculation import SpeculationRequest
from services.runtime.errors import FailedPrecondition

_BY_WORKLOAD = {
    "single_tenant": "eagle3",
    "many_adapters": "lookahead",
    "rag": "rest",
    "code": "lookahead",
    "structured": "eagle3",
}
_UNDECLARED = "eagle3"
_MISSING = {"rest": "no_corpus", "draft": "no_draft_model"}
_INSTEAD = "lookahead"
_MOVES_TO = ("lookahead", "rest", "draft")  # besides eagle3, where a head is fit
_DEPTH = {"eagle3": 16, "draft": 4}  # bounds, where the request names none


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the server can do at this moment.

    `ledger_known`: it has been asked, since the start, what is halted and withdrawn. `halted` are the open halts of
    this base. `adapter_cid` is that of the request.
    """

    loaded: frozenset[str]
    profile_passed: bool
    ledger_known: bool
    halted: tuple[Scope, ...]
    max_temperature: float
    off_when_halted: bool
    heads: HeadState = field(default_factory=HeadState)
    adapter_cid: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What runs. `fallback_reason` is None where nothing stood in the way of what was asked for.

    `drafter` is the engine's name for it: the method's, or that of one of several heads. Where it is `auto`, the
    request begins with `method` and moves among `arms`, engine names too, to what pays.
    """

    requested_method: str
    method: str
    fallback_reason: str | None = None
    head_cid: str | None = None
    k: int | None = None
    drafter: str = "off"
    arms: tuple[str, ...] = ()


def decide(asked: SpeculationRequest, temperature: float, now: Circumstances) -> Decision:
    """Raises NotFound for a head that is named and not there, FailedPrecondition (SPEC_DECODE_HALTED) after a halt and
    for a named head that is not served, with the reason why.
    """
    named = None if asked.eagle_head is None else now.heads.named(asked.eagle_head)
    decision = _unless_halted(asked, temperature, now, named)
    if any(scope.covers(scope.base_cid, decision.method, decision.head_cid) for scope in now.halted):
        if not now.off_when_halted:
            raise FailedPrecondition(
                f"an audit has halted {decision.method} on this base; ask for method off, or wait for an operator's "
                "resume",
                reason="SPEC_DECODE_HALTED",
                metadata={"method": decision.method},
            )
        return _off(asked, "halted")
    if asked.method == "auto" and asked.workload is None and decision.method != "off":
        return _moving(decision, now)
    return decision


def _moving(decision: Decision, now: Circumstances) -> Decision:
    """Nobody said what the request is like: it begins with the table's default, and what it meets decides."""
    head, _ = now.heads.pick(now.adapter_cid, only_fit=True)
    loaded = {method: method for method in _MOVES_TO if method in now.loaded}
    if head is not None and decision.method != "eagle3":  # a head that was named is the only one
        loaded["eagle3"] = head.drafter
    for scope in now.halted:
        if scope.head_cid is None or (head is not None and scope.head_cid == head.cid):
            loaded.pop(scope.method, None)
    others = [drafter for drafter in loaded.values() if drafter != decision.drafter]
    return replace(decision, drafter="auto", arms=(decision.drafter, *others)) if others else decision


def _unless_halted(
    asked: SpeculationRequest, temperature: float, now: Circumstances, named: ServedHead | None
) -> Decision:
    """The decision, halts left aside."""
    wanted = _preferred(asked.workload) if asked.method == "auto" else asked.method
    obstacle = None if wanted == "off" else _obstacle(temperature, now)
    if wanted == "off" or obstacle is not None:
        return _off(asked, obstacle)
    if wanted == "eagle3":
        head, reason = _head(asked, now, named)
        if head is not None:
            return Decision(asked.method, wanted, None, head.cid, asked.k or _DEPTH[wanted], head.drafter)
        return _instead(asked, now, reason)
    if wanted in now.loaded:
        return Decision(asked.method, wanted, k=asked.k or _DEPTH.get(wanted), drafter=wanted)
    return _instead(asked, now, _MISSING.get(wanted))


def _obstacle(temperature: float, now: Circumstances) -> str | None:
    """Why nothing may speculate, None where it may."""
    if temperature > now.max_temperature:
        return "temperature"
    if not now.profile_passed:
        return "profile_unproven"
    return None if now.ledger_known else "halt_state_unknown"


def _head(
    asked: SpeculationRequest, now: Circumstances, named: ServedHead | None
) -> tuple[ServedHead | None, str | None]:
    """Who asks for eagle3 in so many words gets it also where a measurement advises against it."""
    if named is not None:
        return named, None
    return now.heads.pick(now.adapter_cid, only_fit=asked.method == "auto")


def _instead(asked: SpeculationRequest, now: Circumstances, reason: str | None) -> Decision:
    if _INSTEAD in now.loaded:
        return Decision(asked.method, _INSTEAD, reason, k=asked.k, drafter=_INSTEAD)
    return _off(asked, reason or "not_loaded")


def _off(asked: SpeculationRequest, reason: str | None) -> Decision:
    return Decision(asked.method, "off", reason)


def _preferred(workload: str | None) -> str:
    return _UNDECLARED if workload is None else _BY_WORKLOAD[workload]
