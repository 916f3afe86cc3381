"""What an auditor asks to be decoded again: checked against what is served, speculation off."""

from __future__ import annotations

import uuid
from dataclasses import replace

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.engine.request import EngineRequest
from services.generation.errors import engine_errors
from services.generation.identity import Identity
from services.generation.sampling import MAX_CHOICES, read_sampling
from services.runtime.errors import FailedPrecondition, InvalidArgument


def replay_request(request: pb.ReplayRequest, identity: Identity) -> EngineRequest:
    """Raises FailedPrecondition (UNREPLAYABLE) where something else is served, InvalidArgument naming the field."""
    for field in ("base_cid", "tokenizer_cid", "profile_cid"):
        asked, served = getattr(request, field), getattr(identity, field)
        if asked != served:
            raise FailedPrecondition(
                f"{field}: {served} is served here, not {asked}", reason="UNREPLAYABLE", metadata={"field": field}
            )
    adapter_cid = request.adapter_cid if request.HasField("adapter_cid") else None
    if adapter_cid is not None and adapter_cid not in {each.cid for each in identity.adapters}:
        raise FailedPrecondition(
            f"adapter_cid: {adapter_cid} is not loaded here", reason="UNREPLAYABLE", metadata={"field": "adapter_cid"}
        )
    if request.choice >= MAX_CHOICES:
        raise InvalidArgument("choice", f"is {request.choice}; expected a whole number from 0 to {MAX_CHOICES - 1}")
    if request.sampling.temperature != 0.0 and not request.sampling.HasField("seed"):
        raise InvalidArgument("sampling.seed", "is missing; expected the receipt's")
    prompt = tuple(request.prompt_token_ids)
    sampling = read_sampling(request.sampling, identity.context_length - len(prompt))
    if request.max_output_tokens:
        most = min(sampling.max_tokens, request.max_output_tokens)
        sampling = replace(sampling, max_tokens=most, min_tokens=min(sampling.min_tokens, most))
    engine_request = EngineRequest(f"replay/{uuid.uuid4()}", prompt, sampling, request.choice, adapter_cid, reuse=False)
    with engine_errors("prompt_token_ids"):
        engine_request.check(identity.vocab_size, identity.context_length)
    return engine_request
