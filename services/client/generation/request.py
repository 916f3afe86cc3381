"""A caller's request. None means the server's default, which the comments of the proto name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from services.client.generation.mapped import mapped, refuse
from services.client.generation.structured_outputs import StructuredOutputs
from services.client.generation.tools import ToolCall, Tools


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
    structured_outputs: StructuredOutputs | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Raises InvalidArgument for a constraint of another form."""
        if self.structured_outputs is not None:
            constraint = mapped(StructuredOutputs, self.structured_outputs, "sampling.structured_outputs")
            object.__setattr__(self, "structured_outputs", constraint)

    @property
    def constraint(self) -> StructuredOutputs | None:
        """The constraint on the output."""
        return cast("StructuredOutputs | None", self.structured_outputs)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; `role` is one of the model's chat template: system, user, assistant, tool.

    `tool_calls` are those of an assistant's turn; `tool_call_id` names the one that a tool's turn answers.
    """

    role: str
    content: str
    tool_calls: Sequence[ToolCall | Mapping[str, str]] = ()
    tool_call_id: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidArgument for calls of another form."""
        calls = tuple(mapped(ToolCall, each, f"tool_calls[{place}]") for place, each in enumerate(self.tool_calls))
        object.__setattr__(self, "tool_calls", calls)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return cast("tuple[ToolCall, ...]", self.tool_calls)


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt (text, messages or token ids: exactly one) and how to continue it.

    A message may be a mapping with role and content, `sampling` a mapping with the fields of SamplingParams.
    `workload` is single_tenant, many_adapters, rag, code or structured; only the policy of method "auto" reads it.
    `nonce` goes into the receipt. `prediction` is the output that the caller expects: it is drafted from, changes no
    token and is in no receipt. Of the tenant's waiting requests those with the lowest `priority` come first.
    `tools` may be called where there are messages.
    """

    prompt: str | None = None
    messages: Sequence[Message | Mapping[str, Any]] | None = None
    token_ids: Sequence[int] | None = None
    sampling: SamplingParams | Mapping[str, Any] | None = SamplingParams()
    model: str | None = None
    request_id: str = ""
    idempotency_key: str = ""
    tenant: str = ""
    adapter: str | None = None
    workload: str | None = None
    nonce: str = ""
    prediction: str = ""
    priority: int = 0
    tools: Tools | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Raises InvalidArgument for messages and sampling of another form."""
        sampling = SamplingParams() if self.sampling is None else mapped(SamplingParams, self.sampling, "sampling")
        object.__setattr__(self, "sampling", sampling)
        if self.tools is not None:
            object.__setattr__(self, "tools", mapped(Tools, self.tools, "tools"))
        if self.messages is not None:
            object.__setattr__(self, "messages", tuple(_turns(self.messages)))

    @property
    def turns(self) -> tuple[Message, ...]:
        """The messages; none where the prompt is text or token ids."""
        return cast("tuple[Message, ...]", self.messages or ())

    @property
    def tool_set(self) -> Tools | None:
        """The tools."""
        return cast("Tools | None", self.tools)

    @property
    def sent(self) -> str | list[dict[str, str]] | None:
        """The prompt's text, or the conversation as receipts commit to it; None for token ids."""
        from ledger.documents.sent import sent_tools, sent_turn

        if self.messages is None:
            return self.prompt
        tools = self.tool_set.given if self.tool_set else ()
        turns = (
            sent_turn(each.role, each.content, [(c.id, c.name, c.arguments) for c in each.calls], each.tool_call_id)
            for each in self.turns
        )
        return [*sent_tools([(each.name, each.description, each.schema, each.strict) for each in tools]), *turns]

    @property
    def params(self) -> SamplingParams:
        """How tokens are chosen."""
        return cast(SamplingParams, self.sampling)


def as_request(given: object) -> Request:
    """A text is a prompt with every default, a mapping has the fields of a Request. Raises InvalidArgument."""
    return Request(prompt=given) if isinstance(given, str) else mapped(Request, given, "request")


def _turns(messages: object) -> list[Message]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        refuse("messages", f"expected a list of messages, got {type(messages).__name__}")
    return [mapped(Message, each, f"messages[{place}]") for place, each in enumerate(messages)]
