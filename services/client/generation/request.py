"""A caller's request: prompt, sampling, tools, constraints, speculation. None means the server's default."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from hashlib import sha256  # OpenSSL's, which most requests do without
from typing import Any, NoReturn, TypeVar, cast

_Value = TypeVar("_Value")


KINDS = ("json", "regex", "choice", "grammar", "json_object")

CHOICES = ("auto", "none", "required")


def mapped(kind: type[_Value], given: object, path: str) -> _Value:
    """`given` if it is a `kind`, a dataclass, or one with the fields that the mapping has. `path` names it in errors.

    Raises InvalidArgument for another value, an unknown field, a missing one.
    """
    if isinstance(given, kind):
        return given
    known: Any = fields(kind)  # type: ignore[arg-type]
    names = [field.name for field in known]
    if not isinstance(given, Mapping):
        refuse(path, f"expected a {kind.__name__}, or a mapping with {', '.join(names)}, got {type(given).__name__}")
    if unknown := [name for name in given if name not in names]:
        refuse(f"{path}.{unknown[0]}", f"there is no such field; expected some of {', '.join(names)}")
    needed = [field.name for field in known if field.default is MISSING and field.default_factory is MISSING]
    if missing := [name for name in needed if name not in given]:
        refuse(f"{path}.{missing[0]}", "is missing")
    return kind(**given)


def refuse(path: str, problem: str) -> NoReturn:
    """Raises InvalidArgument about the field `path`."""
    from services.client.errors import FieldViolation, InvalidArgument  # import gRPC, unneeded by valid requests

    safe = problem.encode("utf-8", "backslashreplace").decode("utf-8")
    raise InvalidArgument(f"{path}: {safe}", violations=(FieldViolation(path, safe),))


@dataclass(frozen=True, slots=True)
class SpecDecodeConfig:
    """How to speculate; it changes the speed, never the tokens. None is the server's default.

    `method` is auto, off or one of `ModelInfo.draft_methods`, which lists their `parameters`, too. `eagle_head` is
    `cidv1:sha256:…` or `name@sha256:<prefix>`.
    `k` is the draft depth in tokens. `accept_threshold` is sent as it is and the server takes 0.0 only: anything else
    would be lossy. `verify` is "sampled" or "inline" (replayed before the receipt is signed).
    """

    method: str | None = None
    eagle_head: str | None = None
    k: int | None = None
    accept_threshold: float | None = None
    verify: str | None = None
    parameters: Mapping[str, int] = field(default_factory=dict)


def as_config(given: object) -> SpecDecodeConfig | None:
    """None is the server's choice, a mapping has the fields of a SpecDecodeConfig. Raises InvalidArgument."""
    return None if given is None else mapped(SpecDecodeConfig, given, "spec_decode")


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """A constraint on the output, by exactly one of its members; vLLM's names.

    `json` is a JSON schema, written out or as a Python value, `regex` matches the whole output, `choice` are the texts
    of which it is one, `grammar` is Lark or GBNF, `json_object` any JSON object. `engine` is for replays: the library
    that the receipt names.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    engine: str = ""

    @classmethod
    def of(cls, kind: str, text: str, engine: str = "") -> StructuredOutputs:
        """The constraint of a receipt's or content's `kind` and `text`. Raises ValueError for an unknown kind."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not a kind of constraint that this client knows")
        value: Any = json.loads(text) if kind == "choice" else True if kind == "json_object" else text
        return cls(**{kind: value}, engine=engine)

    @property
    def kind(self) -> str:
        """The member that is set. Raises ValueError unless it is one."""
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"expected exactly one of {', '.join(KINDS)}, got {' and '.join(given) or 'none'}")
        return given[0]

    @property
    def text(self) -> str:
        """The constraint's text, which receipts commit to."""
        from ledger.encoding.canonical import canonical

        value = getattr(self, self.kind)
        if self.kind == "json":
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if self.kind == "choice":
            return canonical(list(value)).decode()
        return "" if self.kind == "json_object" else str(value)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function: its name, a description, and the JSON schema of its arguments, written out or as a Python value.

    With `strict` its arguments follow the schema even if the model need not call.
    """

    name: str
    description: str = ""
    parameters: str | Mapping[str, Any] | None = None
    strict: bool = False

    @property
    def schema(self) -> str:
        """The schema as JSON, empty without one."""
        if self.parameters is None or isinstance(self.parameters, str):
            return self.parameters or ""
        return json.dumps(self.parameters, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that the model may call, and whether it has to: `choice` is auto, none or required.

    `allowed` names the tools that it may call, all if it is empty. Without `parallel` an answer has one call.
    """

    tools: Sequence[Tool | Mapping[str, Any]]
    choice: str = "auto"
    allowed: Sequence[str] = ()
    parallel: bool = True

    def __post_init__(self) -> None:
        """Raises InvalidArgument for tools of another form, or an unknown choice."""
        given = tuple(mapped(Tool, each, f"tools[{place}]") for place, each in enumerate(self.tools))
        object.__setattr__(self, "tools", given)
        if self.choice not in CHOICES:
            refuse("tools.choice", f"expected one of {', '.join(CHOICES)}, got {self.choice!r}")

    @property
    def given(self) -> tuple[Tool, ...]:
        return cast("tuple[Tool, ...]", self.tools)

    @property
    def names(self) -> list[str]:
        """The names of the tools that may be called."""
        return [tool.name for tool in self.given if not self.allowed or tool.name in self.allowed]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. `arguments` is the JSON of an object, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Called:
    """An output's calls, its other text, and its thoughts. `cut_off`: the output ended within a call, which is the last
    one, or was still without arguments.
    """

    content: str
    calls: tuple[ToolCall, ...]
    thoughts: str = ""
    cut_off: bool = False


@dataclass(frozen=True, slots=True)
class ToolCallSyntax:
    """Syntax of calls in an output's text, as in the proto's ToolCallSyntax."""

    open: str
    middle: str
    between: str | None
    close: str


@dataclass(frozen=True, slots=True)
class ThoughtSyntax:
    """Syntax of thoughts in an output's text, as in the proto's ThoughtSyntax."""

    open: str
    closes: tuple[str, ...]
    bare: str = ""
    begun: bool = False


def call_id(request_id: str, choice: int, place: int) -> str:
    """The id of a call, by the request's id, so that every reading of the output gives the same."""
    return "call_" + sha256(f"{request_id}/{choice}/{place}".encode()).hexdigest()[:24]


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

    `tool_calls` and `reasoning_content`, the thoughts before the answer, belong to an assistant's turn; `tool_call_id`
    names the call that a tool's turn answers.
    """

    role: str
    content: str
    tool_calls: Sequence[ToolCall | Mapping[str, str]] = ()
    tool_call_id: str = ""
    reasoning_content: str = ""

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

    A message may be a mapping with role and content, `sampling` a mapping with the fields of SamplingParams. `workload`
    is single_tenant, many_adapters, rag, code or structured; only the policy of method "auto" reads it. `nonce` goes
    into the receipt. `prediction` is the output that the caller expects: drafts come from it; it changes no token and
    is in no receipt. Of the tenant's waiting requests the lowest `priority` comes first. `tools` need messages. With
    `continue_final_message` the model continues the last message, which is the assistant's. With a `suffix` the model
    writes the text between prompt and suffix.
    """

    prompt: str | None = None
    messages: Sequence[Message | Mapping[str, Any]] | None = None
    token_ids: Sequence[int] | None = None
    sampling: SamplingParams | Mapping[str, Any] | None = SamplingParams()
    model: str | None = None
    request_id: str = ""
    tenant: str = ""
    adapter: str | None = None
    workload: str | None = None
    nonce: str = ""
    prediction: str = ""
    priority: int = 0
    tools: Tools | Mapping[str, Any] | None = None
    continue_final_message: bool = False
    suffix: str = ""

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
        """The messages; none if the prompt is text or token ids."""
        return cast("tuple[Message, ...]", self.messages or ())

    @property
    def tool_set(self) -> Tools | None:
        """The tools."""
        return cast("Tools | None", self.tools)

    @property
    def sent(self) -> str | list[dict[str, str]] | None:
        """The prompt's text, or the conversation as receipts commit to it; None for token ids."""
        from ledger.documents.content import SentCall, SentTool, continued_turns, sent_infill, sent_tools, sent_turn

        if self.messages is None:
            return sent_infill(self.prompt or "", self.suffix) if self.suffix else self.prompt
        tools = self.tool_set.given if self.tool_set else ()
        turns = (
            sent_turn(
                each.role,
                each.content,
                [SentCall(c.id, c.name, c.arguments) for c in each.calls],
                each.tool_call_id,
                each.reasoning_content,
            )
            for each in self.turns
        )
        told = sent_tools([SentTool(each.name, each.description, each.schema, each.strict) for each in tools])
        sent = [*told, *turns]
        return continued_turns(sent) if self.continue_final_message and self.turns else sent

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
