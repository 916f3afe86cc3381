"""The policy: which methods serve a request, and the reason of a fallback. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ledger.documents.halt import Scope
from services.generation.drafting.method_spec import MethodSpec
from services.generation.drafting.methods import METHODS
from services.generation.requests.parameters import SpeculationRequest
from services.generation.requests.served_heads import HeadState, ServedHead
from services.runtime.errors import FailedPrecondition, Unavailable

_CANNOT_RUN = {
    "temperature": "at this temperature the server does not speculate",
    "profile_unproven": "this machine's numerics failed their probe",
    "logit_bias": "the engine does not speculate with logit_bias",
    "min_p": "the engine does not speculate with min_p",
}
"""Permanent obstacles: a method asked for by name is refused. An unreachable ledger is a temporary obstacle: the
request is served without drafts.
"""


AWAY = "away"
"""Reason of receipts if another engine's server that speculates does not answer."""


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """The server's abilities at this moment.

    Attributes:
        loaded: methods.
        ledger_known: whether the open halts are known and recent, and the log was read once for withdrawn heads.
        halted: open halts, of any base.
        adapter_cid: adapter of the request.
        not_drafted: a parameter of the request with which the engine does not speculate.
    """

    base_cid: str
    loaded: Sequence[str]
    profile_passed: bool
    ledger_known: bool
    halted: tuple[Scope, ...]
    max_temperature: float
    off_when_halted: bool
    heads: HeadState = field(default_factory=HeadState)
    methods: Sequence[MethodSpec] = METHODS
    adapter_cid: str | None = None
    not_drafted: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The method that runs. `fallback_reason` is None if the request is served as asked.

    `drafters`: names of the engine, the name of `method` first. The others take over if it does not pay; there are
    others only if the server chose the method.
    """

    requested_method: str
    method: str
    fallback_reason: str | None = None
    head_cid: str | None = None
    k: int | None = None
    drafters: tuple[str, ...] = ("off",)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A method that could run, and the head that it would draft with."""

    spec: MethodSpec
    head: ServedHead | None

    @property
    def drafter(self) -> str:
        return self.spec.name if self.head is None else self.head.drafter

    def halted(self, now: PolicyContext) -> bool:
        head_cid = None if self.head is None else self.head.cid
        return any(scope.covers(now.base_cid, self.spec.name, head_cid) for scope in now.halted)


def decide(asked: SpeculationRequest, temperature: float, now: PolicyContext) -> Decision:
    """The method of a request, and the drafters of its sequence.

    Raises FailedPrecondition if a method asked for by name is not loaded (METHOD_NOT_LOADED), may not draft for this
    request (METHOD_CANNOT_RUN) or is halted (SPEC_DECODE_HALTED), and for a named head that is not served; NotFound
    for an unknown head; Unavailable if another engine's server that speculates is away.
    """
    named = None if asked.eagle_head is None else now.heads.named(asked.eagle_head)
    if named is not None:
        asked = _of_kind(asked, named)
    obstacle = _reason_not_to_draft(temperature, now)
    if asked.method not in ("auto", "off") and obstacle in _CANNOT_RUN:
        raise FailedPrecondition(
            f"{asked.method} cannot run: {_CANNOT_RUN[obstacle]}. Ask for auto or off, which are served without drafts",
            reason="METHOD_CANNOT_RUN",
            metadata={"method": asked.method, "missing": obstacle},
        )
    if asked.method == "off" or obstacle is not None:
        return Decision(asked.method, "off", None if asked.method == "off" else obstacle)
    wanted = _wanted(asked, now)
    found = [_candidate(spec, asked, now, named) for spec in wanted]
    loaded = [candidate for candidate, _ in found if candidate is not None]
    runs = [candidate for candidate in loaded if not candidate.halted(now)]
    if not runs:
        return _off(asked, found[0][1], loaded, now)
    first = runs[0]
    passed_over = found[: next(place for place, (candidate, _) in enumerate(found) if candidate is first)]
    halted = any(candidate is not None for candidate, _ in passed_over)
    reason = None if not passed_over else "halted" if halted else passed_over[0][1]
    head_cid = None if first.head is None else first.head.cid
    drafters = tuple(candidate.drafter for candidate in runs)
    return Decision(asked.method, first.spec.name, reason, head_cid, asked.k or first.spec.depth, drafters)


def _of_kind(asked: SpeculationRequest, head: ServedHead) -> SpeculationRequest:
    """Set the method by the kind of the named head. Raises FailedPrecondition if another method is asked for."""
    if asked.method not in ("auto", head.kind):
        raise FailedPrecondition(
            f"{asked.eagle_head} is a head of {head.kind}, not of {asked.method}; leave spec_decode.method out",
            reason="HEAD_OF_ANOTHER_METHOD",
            metadata={"head_cid": head.cid, "method": head.kind},
        )
    return replace(asked, method=head.kind)


def _wanted(asked: SpeculationRequest, now: PolicyContext) -> list[MethodSpec]:
    """The named method, or all methods that `auto` may choose, in the order of the declared workload. If there are
    heads, a kind without a head is not reported as missing.
    """
    if asked.method != "auto":
        return [spec for spec in now.methods if spec.name == asked.method]
    kinds = {head.kind for head in now.heads.served}
    there = [spec for spec in now.methods if not (spec.has_heads and kinds and spec.name not in kinds)]
    eligible = [spec for spec in there if not spec.by_name_only]
    return sorted(eligible, key=lambda spec: asked.workload not in spec.workloads)


def _off(asked: SpeculationRequest, reason: str | None, loaded: list[_Candidate], now: PolicyContext) -> Decision:
    """Speculation off, since no requested method may run. Raises FailedPrecondition if halted methods are refused."""
    if loaded and not now.off_when_halted:
        name = loaded[0].spec.name
        raise FailedPrecondition(
            f"{name} is halted on this base, by an audit or a replay of this server's own; ask for method off, or wait "
            "for an operator's resume",
            reason="SPEC_DECODE_HALTED",
            metadata={"method": name},
        )
    if not loaded and any(head.kind == asked.method for head in now.heads.served):
        raise FailedPrecondition(
            f"no head of {asked.method} may draft for this request ({reason}); ask for another method, or for auto",
            reason="METHOD_CANNOT_RUN",
            metadata={"method": asked.method, "missing": reason or ""},
        )
    if reason == AWAY and asked.method != "auto":
        raise Unavailable(
            f"the server of {asked.method} is away; ask again, or for auto or off, which are served without drafts",
            reason="ENGINE_STOPPED",
        )
    if not loaded and asked.method != "auto":
        flag = next(spec.flag for spec in now.methods if spec.name == asked.method)
        raise FailedPrecondition(
            f"{asked.method} is not loaded here; loaded: {', '.join(now.loaded) or 'none'}. Ask for one of these, "
            f"for auto, or start the server with {flag}",
            reason="METHOD_NOT_LOADED",
            metadata={"method": asked.method, "missing": reason or ""},
        )
    return Decision(asked.method, "off", "halted" if loaded else reason or "not_loaded")


def _reason_not_to_draft(temperature: float, now: PolicyContext) -> str | None:
    """The reason why no method may speculate; None if methods may."""
    if temperature > now.max_temperature:
        return "temperature"
    if not now.profile_passed:
        return "profile_unproven"
    if now.not_drafted is not None:
        return now.not_drafted
    return None if now.ledger_known else "halt_state_unknown"


def _candidate(
    spec: MethodSpec, asked: SpeculationRequest, now: PolicyContext, named: ServedHead | None
) -> tuple[_Candidate | None, str | None]:
    """The method as it could run, or the reason why it cannot. A head with a k-score below its threshold drafts only
    for a request that asks for its method.
    """
    if spec.has_heads:
        if named is not None:
            return _Candidate(spec, named), None
        heads, reason = now.heads.eligible(now.adapter_cid, above_threshold=asked.method == "auto")
        candidates = [_Candidate(spec, head) for head in heads if head.kind == spec.name]
        runs = (candidate for candidate in candidates if not candidate.halted(now))
        return next(runs, candidates[0] if candidates else None), reason or (None if candidates else "no_head")
    return (_Candidate(spec, None), None) if spec.name in now.loaded else (None, spec.missing)
