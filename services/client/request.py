"""A caller's request. None means the server's default, which the comments of the proto name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen; names and meanings as in `kolm.generation.v1.SamplingParams`."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    seed: int | None = None
    n: int | None = None
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; `role` is one of the model's chat template: system, user, assistant, tool."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt (text, messages or token ids: exactly one) and how to continue it.

    `workload` is single_tenant, many_adapters, rag, code or structured; only the policy of method "auto" reads it.
    `nonce` goes into the receipt. `prediction` is the output that the caller expects: it is drafted from, changes no
    token and is in no receipt.
    """

    prompt: str | None = None
    messages: Sequence[Message] | None = None
    token_ids: Sequence[int] | None = None
    sampling: SamplingParams = SamplingParams()
    model: str | None = None
    request_id: str = ""
    idempotency_key: str = ""
    tenant: str = ""
    adapter: str | None = None
    workload: str | None = None
    nonce: str = ""
    prediction: str = ""
