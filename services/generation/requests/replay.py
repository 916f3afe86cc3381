"""An auditor's request to decode again with speculation off, checked against the model that is served."""

from __future__ import annotations

import uuid
from dataclasses import replace

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.engine.grammars.compiler import GrammarCompiler
from services.generation.engine.request import EngineRequest
from services.generation.requests.refusal import engine_errors
from services.generation.requests.sampling import MAX_CHOICES, read_sampling
from services.generation.requests.server_identity import Identity
from services.generation.requests.structured_outputs import compiled
from services.runtime.errors import FailedPrecondition, InvalidArgument


async def replay_request(request: pb.ReplayRequest, identity: Identity, grammars: GrammarCompiler) -> EngineRequest:
    """Raises FailedPrecondition (UNREPLAYABLE) if another model is served, InvalidArgument naming the field."""
    _check_served(request, identity)
    adapter_cid = request.adapter_cid if request.HasField("adapter_cid") else None
    if adapter_cid is not None and adapter_cid not in {each.cid for each in identity.adapters}:
        raise _unreplayable("adapter_cid", f"{adapter_cid} is not loaded here")
    if request.choice >= MAX_CHOICES:
        raise InvalidArgument("choice", f"is {request.choice}; expected a whole number from 0 to {MAX_CHOICES - 1}")
    if request.sampling.temperature != 0.0 and not request.sampling.HasField("seed"):
        raise InvalidArgument("sampling.seed", "is missing; expected the receipt's")
    prompt = tuple(request.prompt_token_ids)
    sampling = read_sampling(request.sampling, identity.context_length - len(prompt))
    if request.max_output_tokens:
        most = min(sampling.max_tokens, request.max_output_tokens)
        sampling = replace(sampling, max_tokens=most, min_tokens=min(sampling.min_tokens, most))
    engine_request = EngineRequest(
        f"replay/{uuid.uuid4()}", prompt, sampling, request.choice, adapter_cid, reuse=False,
        grammar=await compiled(sampling.structured_outputs, grammars),
    )  # fmt: skip
    with engine_errors("prompt_token_ids"):
        engine_request.check(identity.vocab_size, identity.context_length)
    return engine_request


def _check_served(request: pb.ReplayRequest, identity: Identity) -> None:
    """Another base, tokenizer or profile computes other bits, and its stream proves nothing about the receipt's."""
    for field in ("base_cid", "tokenizer_cid"):
        asked, served = getattr(request, field), getattr(identity, field)
        if asked != served:
            raise _unreplayable(field, f"{served} is served here, not {asked}")
    if request.profile_cid != identity.profile_cid:
        raise _unreplayable(
            "profile_cid",
            f"the receipt names numerics profile {request.profile_cid}, served here is {identity.profile_cid}; replay "
            "it where its own is served. Receipts made before kolm-arithmetic/1, by a vendor's kernels, cannot be "
            "computed again here; run the version that made them",
        )


def _unreplayable(field: str, why: str) -> FailedPrecondition:
    return FailedPrecondition(f"{field}: {why}", reason="UNREPLAYABLE", metadata={"field": field})
