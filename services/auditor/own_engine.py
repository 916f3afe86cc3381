"""The auditor's own engine: the base's weights in this process, and nothing from the audited server."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace
from typing import cast

from msgspec import structs

from ledger.documents.audit import DECODE, PREFILL, ReferencePass
from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from services.auditor.audit_error import CannotReplay, EngineAway, EngineFailed, Interrupted, OutOfReach
from services.auditor.examination import EnginePlan, Replayed, replay_limit
from services.auditor.reference import drawn_by_llama_server, scored
from services.generation.engine.request import (
    KINDS,
    EngineBusy,
    EngineError,
    EngineRequest,
    InvalidRequest,
    Kind,
    SamplingParams,
    StructuredOutputs,
    ThoughtSyntax,
    grammar_engine,
)
from services.generation.remote.dialects import seed_of
from services.generation.target.errors import TargetError, about
from services.generation.target.program.packed_files import PackedFolder
from services.generation.verification import Record, Stopped, Verifier

_NOWHERE = 1e6
"""The margin of a token that the weights have no logit for."""


class OwnEngine:
    """`Replayer` on weights in this process. Its results depend on the receipt, the content and the weights."""

    ways: tuple[str, ...] = (PREFILL, DECODE)

    def __init__(self, verifier: Verifier, *, any_storage: bool = False) -> None:
        """`any_storage` accepts receipts of other files if their numerics profile equals the profile of these
        weights.
        """
        self._verifier = verifier
        self._any_storage = any_storage

    @classmethod
    def load(cls, plan: EnginePlan, stop: threading.Event, *, any_storage: bool = False) -> OwnEngine:
        """Load and probe the base, which takes seconds. `stop` ends a running replay. Raises EngineFailed."""
        try:
            verifier = Verifier.load(
                plan.model,
                adapters=plan.adapters,
                context_length=plan.context_length,
                cache_dtype=plan.cache_dtype,
                arithmetic=plan.arithmetic,
                threads=plan.threads,
                packed=PackedFolder(plan.packed_bytes),
                stopping=stop.is_set,
            )
        except TargetError as error:
            raise EngineFailed(f"cannot load {about(plan.model, error)}") from error
        return cls(verifier, any_storage=any_storage)

    @property
    def base_cid(self) -> str:
        """The identifier of the weights in this process."""
        return self._verifier.target.base_cid

    def replay(self, receipt: Receipt, content: Content, way: str = DECODE) -> Replayed:
        """The contract of Replayer; raises OutOfReach for another base, tokenizer, profile or adapter than its own."""
        self._check(receipt)
        request = request_of(receipt, content)
        self._check_thoughts(receipt, request)
        try:
            if way == PREFILL:
                outcome = self._verifier.prefill(Record(request, content.output_token_ids))
            else:
                outcome = self._verifier.decode(request)
        except EngineBusy as error:
            raise EngineAway(f"the auditor's engine cannot run the request now: {error}") from error
        except InvalidRequest as error:
            raise CannotReplay(f"the auditor's engine cannot run the request: {error}") from error
        except Stopped as error:
            raise Interrupted("stopped in the middle of a replay") from error
        verifier = self._verifier
        return Replayed(
            token_ids=outcome.token_ids,
            finish_reason=outcome.finish_reason,
            stream_digest=outcome.stream_digest,
            profile_cid=verifier.profile.cid,
            decode_seconds=outcome.metrics.decode_seconds,
            margins=outcome.margins,
            text=outcome.text if receipt.tokenizer_cid == verifier.target.tokenizer_cid else None,
            stop_reason=outcome.stop_reason,
        )

    def release_memory(self) -> None:
        """Release what the next replay can allocate again."""
        self._verifier.release_memory()

    @property
    def ends(self) -> Collection[int]:
        """The ids with which the model ends outputs."""
        return self._verifier.target.config.eos_token_ids

    def spelled(self, receipt: Receipt, content: Content) -> str | None:
        """The text of an output's ids. None if the receipt names another tokenizer."""
        if receipt.tokenizer_cid != self._verifier.target.tokenizer_cid:
            return None
        return self._verifier.text(content.prompt_token_ids, content.output_token_ids)

    def refer(self, receipt: Receipt, content: Content) -> ReferencePass:
        """The statistics of another engine's output by these weights. Raises CannotReplay, Interrupted."""
        if receipt.sampling.structured_outputs is not None:
            raise CannotReplay("the output followed the engine's own reading of a constraint, which is unknown here")
        request, target = request_of(receipt, content), self._verifier.target
        unknown = sum(token >= target.config.vocab_size for token in content.output_token_ids)
        if unknown:  # these weights cannot have produced them
            return ReferencePass(target.base_cid, mean=_NOWHERE, largest=_NOWHERE, differing=unknown)
        sampling, logits = request.sampling, self._verifier.logits(Record(request, content.output_token_ids))
        known = (receipt.engine or "").startswith("llama-server/")
        drawn = drawn_by_llama_server(seed_of(request, 32)) if known else None
        try:
            replace(sampling, top_k=min(sampling.top_k, target.config.vocab_size)).check(target.config.vocab_size)
            return scored(
                request, content.output_token_ids, logits, target.config.eos_token_ids, target.base_cid, drawn
            )
        except EngineError as error:
            raise CannotReplay(f"the auditor's engine cannot run along the output: {error}") from error
        except Stopped as error:
            raise Interrupted("stopped in the middle of a pass") from error

    def _check_thoughts(self, receipt: Receipt, request: EngineRequest) -> None:
        """Raises CannotReplay if no stop string counted in other thoughts than this model's."""
        stated, verifier = request.thoughts, self._verifier
        if stated is None or receipt.tokenizer_cid != verifier.target.tokenizer_cid:
            return
        if not verifier.is_syntax(stated, request.prompt):
            raise CannotReplay(
                f"sampling.thoughts: the receipt has {receipt.sampling.thoughts}, which is not the syntax of this "
                "model's chat template for this prompt: stop strings may have counted elsewhere"
            )

    def _check(self, receipt: Receipt) -> None:
        """Raise OutOfReach or CannotReplay for a receipt whose bits this engine cannot reproduce."""
        target, profile = self._verifier.target, self._verifier.profile
        own = {"profile_cid": profile.cid}
        if not self._any_storage:
            own = {"base_cid": target.base_cid, "tokenizer_cid": target.tokenizer_cid} | own
        for name, cid in own.items():
            if getattr(receipt, name) != cid:
                raise OutOfReach(f"{name}: the receipt names {getattr(receipt, name)}, the auditor has loaded {cid}")
        if receipt.adapter_cid not in (None, *(adapter.cid for adapter in target.adapters)):
            raise OutOfReach(f"adapter_cid: {receipt.adapter_cid} is not loaded here; name it with --adapter")
        constraint = receipt.sampling.structured_outputs
        if constraint is not None and constraint.kind not in KINDS:
            raise CannotReplay(f"sampling.structured_outputs.kind: {constraint.kind} is not known here")
        if constraint is not None and constraint.engine != grammar_engine():
            raise OutOfReach(
                f"sampling.structured_outputs.engine: the receipt names {constraint.engine}, installed here is "
                f"{grammar_engine()}, which may allow other tokens"
            )
        if not profile.passed:
            raise CannotReplay(f"numerics profile {profile.cid} has failed its probe on the auditor's machine")


def request_of(receipt: Receipt, content: Content) -> EngineRequest:
    """The receipted request; if its output was cut off from outside, limited to the emitted number of tokens."""
    sampling = structs.asdict(receipt.sampling) | {"seed": int(receipt.sampling.seed)}
    del sampling["n"], sampling["choice"], sampling["thoughts"]
    thoughts = receipt.sampling.thoughts
    if (stated := receipt.sampling.structured_outputs) is not None:
        sampling["structured_outputs"] = StructuredOutputs(cast(Kind, stated.kind), content.structured_outputs or "")
    if limit := replay_limit(receipt):
        most = min(receipt.sampling.max_tokens, limit)
        sampling |= {"max_tokens": most, "min_tokens": min(receipt.sampling.min_tokens, most)}
        if receipt.sampling.min_tokens > most:  # stop strings did not count yet
            sampling["stop"] = ()
    return EngineRequest(
        request_id=receipt.receipt_id,
        prompt=content.prompt_token_ids,
        sampling=SamplingParams(**sampling),
        choice=receipt.sampling.choice,
        adapter=receipt.adapter_cid,
        thoughts=None if thoughts is None else ThoughtSyntax(thoughts.open, thoughts.closes, begun=thoughts.begun),
    )
