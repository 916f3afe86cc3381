"""Resolution of requests: defaults filled in, names turned into identifiers, the method decided."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kolm.generation.v1 import generation_pb2 as pb
from ledger.encoding.commitment import new_salt
from services.generation.drafting.method_spec import MethodSpec
from services.generation.drafting.methods import METHODS
from services.generation.engine.request import (
    ContextExceeded,
    EngineBusy,
    EngineError,
    EngineFull,
    EngineRequest,
    EngineStopped,
    Grammar,
    InvalidRequest,
    SamplingParams,
    StructuredOutputs,
    ThoughtSyntax,
)
from services.generation.engine.text.grammar_compiler import GrammarBudget, Grammars
from services.generation.engine.text.tenant_threads import TenantThreads
from services.generation.engine.text.tokenizer import TextCodec
from services.generation.engine.text.tool_calls import ToolCallSyntax
from services.generation.requests.halts import HaltBoard
from services.generation.requests.parameters import SpeculationRequest, read_choices, read_sampling, read_speculation
from services.generation.requests.policy import Decision, PolicyContext, decide
from services.generation.requests.prompt import CONTEXT_LENGTH_EXCEEDED, Prompt, PromptReader, Tools
from services.generation.requests.served_heads import HeadBoard
from services.generation.target.adapters import AdapterIdentity
from services.runtime.errors import (
    FailedPrecondition,
    InvalidArgument,
    KolmError,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from services.runtime.usage import checked_name

_FULL_RETRY_SECONDS = 1.0
_BUSY_RETRY_SECONDS = 30.0
DEFAULT_TENANT = "default"
_REQUEST_ID = re.compile(r"[\x20-\x7e]{1,128}")


def refusal(error: KolmError | EngineError) -> str | None:
    """The reason of a refusal, as metrics name it; None for a request that is invalid or halted."""
    if isinstance(error, InvalidRequest | InvalidArgument | NotFound | FailedPrecondition):
        return None
    if isinstance(error, EngineError):
        return {EngineFull: "queue_full", EngineBusy: "grammar_timeout"}.get(type(error), "engine_stopped")
    quota = error.metadata.get("quota")
    return error.reason.lower() if quota is None else f"quota_{quota}"


@contextmanager
def engine_errors(input_field: str) -> Iterator[None]:
    """Map every EngineError raised inside. `input_field`: the field of the prompt, such as `messages`."""
    try:
        yield
    except InvalidRequest as error:
        reason = CONTEXT_LENGTH_EXCEEDED if isinstance(error, ContextExceeded) else None
        raise InvalidArgument(_path(error.field, input_field), error.message, reason=reason) from error
    except EngineFull as error:
        raise ResourceExhausted(error.message, retry_after=_FULL_RETRY_SECONDS) from error
    except EngineBusy as error:
        raise Unavailable(error.message, retry_after=_BUSY_RETRY_SECONDS, reason="GRAMMAR_TIMEOUT") from error
    except EngineStopped as error:
        raise Unavailable(error.message, reason="ENGINE_STOPPED") from error


def _path(field: str, input_field: str) -> str:
    """The request's path of a field of the engine."""
    if field in ("prompt", "token_ids"):
        return input_field
    if field == "adapter":
        return field
    return f"spec_decode.{field}" if field in ("method", "k") else f"sampling.{field}"


@dataclass(slots=True)
class Identity:
    """The identity of the served model, fixed at start, except for the profile of another engine, which may be updated.

    `drafters`: methods besides off, in the order of preference. `probe_passed`: of kolm's own arithmetic.
    """

    name: str
    architecture: str
    base_cid: str
    tokenizer_cid: str
    profile_cid: str
    profile: dict[str, Any]
    probe_passed: bool
    vocab_size: int
    context_length: int
    drafters: tuple[str, ...]
    adapters: tuple[AdapterIdentity, ...] = ()
    chat_template: str | None = None  # its digest, `sha256:<hex>`
    engine: str | None = None  # name and version of another engine, such as vllm/0.32.0
    methods_known: tuple[MethodSpec, ...] = METHODS
    not_drafted: Callable[[SamplingParams], str | None] = lambda params: None  # a parameter that excludes drafts

    def adapter_cid(self, reference: str) -> str | None:
        """The identifier of a loaded adapter by its name or identifier; None if it is not loaded."""
        return next((each.cid for each in self.adapters if reference in (each.name, each.cid)), None)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that can be served: off always, the others only if kolm's own profile passed its probe."""
        return ("off", *self.drafters) if self.may_draft else ("off",)

    @property
    def may_draft(self) -> bool:
        """Whether the arithmetic allows speculation: its probe passed, or it is another engine's."""
        return self.probe_passed or self.engine is not None


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request with all defaults filled in. The method was decided under `halt_epoch`."""

    request_id: str
    tenant: str
    adapter_cid: str | None
    nonce: str | None
    prompt: tuple[int, ...]
    text: str | None  # of the prompt, as in `Prompt`
    chat: bool  # whether it is a conversation, rendered by the chat template
    in_turns: bool  # whether the text is turns, as canonical JSON
    sampling: SamplingParams
    choices: int
    speculation: SpeculationRequest
    decision: Decision
    verify_inline: bool
    halt_epoch: int
    profile_cid: str
    engine: str | None = None  # another engine than kolm's, as named in receipts
    prediction: tuple[int, ...] = field(default=(), repr=False)
    priority: int = 0  # among the tenant's waiting requests; lower comes first
    deadline: float = math.inf  # of `time.perf_counter`
    grammar: Grammar | None = None  # of sampling.structured_outputs
    tool_calls: ToolCallSyntax | None = None  # syntax in the output's text, if the model is shown tools
    thoughts: ThoughtSyntax | None = None  # syntax in the output's text, if the model shows any
    prompt_salt: bytes = field(default_factory=new_salt, repr=False)  # in the promise and all choices' receipts

    @property
    def unstopped(self) -> ThoughtSyntax | None:
        """The thoughts in which no stop string counts. Other engines search them, too."""
        return self.thoughts if self.sampling.stop and self.engine is None else None

    @property
    def most_tokens(self) -> int:
        """Tokens of the prompt and of all outputs together."""
        return len(self.prompt) + self.choices * self.sampling.max_tokens

    def without_drafts(self, reason: str) -> Resolved:
        """The same request with speculation off, since the chosen method cannot run."""
        return replace(self, decision=Decision(self.decision.requested_method, "off", reason))

    def engine_request(self, engine_id: str, choice: int, *, off: bool = False) -> EngineRequest:
        """The engine request of one choice, as decided or, for comparison, with speculation off."""
        plain = EngineRequest(
            engine_id, self.prompt, self.sampling, choice, self.adapter_cid, tenant=self.tenant, reuse=not off,
            priority=self.priority, deadline=self.deadline, grammar=self.grammar, profile_cid=self.profile_cid,
            thoughts=self.unstopped,
        )  # fmt: skip
        if off or self.decision.method == "off":
            return plain
        (method, *others), asked = self.decision.drafters, self.speculation
        return replace(
            plain, method=method, next_methods=tuple(others), k=asked.k, parameters=asked.parameters,
            prediction=self.prediction,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rules:
    """The operator's settings for speculation."""

    max_temperature: float
    off_when_halted: bool
    verify_inline: bool


class Resolver:
    """Resolves requests, or refuses them. Used on one event loop; long texts are tokenized on a thread."""

    def __init__(
        self,
        identity: Identity,
        prompts: PromptReader,
        grammars: Grammars,
        halts: HaltBoard,
        heads: HeadBoard,
        rules: Rules,
        budget: GrammarBudget | None = None,
    ) -> None:
        """`budget`: what tenants may spend on grammars; None is no limit."""
        self._identity = identity
        self._prompts, self._grammars, self._budget = prompts, grammars, budget
        self.threads = prompts.threads
        self._halts = halts
        self._heads = heads
        self._rules = rules

    async def resolve(self, request: pb.GenerateRequest, deadline: float = math.inf) -> Resolved:
        """`deadline`: of `time.perf_counter`.

        Raises InvalidArgument naming the field, NotFound, FailedPrecondition for a halted method, and as
        `TenantGrammars.compiled` does.
        """
        self._check_names(request)
        adapter_cid = self._adapter(request)
        speculation = read_speculation(request, self._identity.methods_known)
        choices = read_choices(request.sampling)
        if request.suffix and self._identity.engine is not None:
            raise InvalidArgument("suffix", f"is not supported with {self._identity.engine}; leave it out")
        prompt = await self._prompts.read(request)
        sampling = read_sampling(request.sampling, self._identity.context_length - len(prompt.token_ids))
        if not sampling.ignore_eos:
            stops = dict.fromkeys((*sampling.stop_token_ids, *prompt.ends))
            sampling = replace(sampling, stop_token_ids=tuple(stops))
        tools, asked, codec = prompt.tools, sampling.structured_outputs, self._prompts.tokenizer
        grammars = TenantGrammars(self._grammars, request.tenant or DEFAULT_TENANT, self._budget)
        if tools is not None and (tools.held or asked is not None):
            held = await calls_held(tools, asked, codec, grammars, self.threads)
            sampling = replace(sampling, structured_outputs=held)
        inline = self._rules.verify_inline if speculation.verify_inline is None else speculation.verify_inline
        each = 1 + (speculation.method != "off") + inline  # a choice, its drafts, its comparison
        grammar = await grammars.compiled(sampling.structured_outputs, choices * each)
        with engine_errors(prompt.field):
            checked = EngineRequest("-", prompt.token_ids, sampling, grammar=grammar)
            checked.check(self._identity.vocab_size, self._identity.context_length)
        return Resolved(
            request_id=request.request_id or str(uuid.uuid4()),
            tenant=request.tenant or DEFAULT_TENANT,
            adapter_cid=adapter_cid,
            nonce=request.nonce or None,
            prompt=prompt.token_ids,
            text=prompt.text,
            chat=prompt.field == "messages",
            in_turns=prompt.in_turns,
            sampling=sampling,
            choices=choices,
            speculation=speculation,
            decision=decide(speculation, sampling.temperature, self._context(adapter_cid, sampling)),
            verify_inline=inline,
            halt_epoch=self._halts.epoch,
            profile_cid=self._identity.profile_cid,
            engine=self._identity.engine,
            prediction=await self._prompts.prediction(request.prediction, self._identity.vocab_size, request.tenant),
            priority=request.priority,
            deadline=deadline,
            grammar=grammar,
            tool_calls=None if prompt.tools is None else codec.tool_calls.without(codec.hidden),
            thoughts=_thoughts(codec, request.messages, prompt, asked) if prompt.field == "messages" else None,
        )

    async def tokenize(self, request: pb.TokenizeRequest, tenant: str) -> tuple[int, ...]:
        """Raises InvalidArgument naming the field, NotFound for another model."""
        self._check_model(request.model)
        return await self._prompts.tokens(request, tenant)

    async def detokenize(self, request: pb.DetokenizeRequest, tenant: str) -> str:
        """Raises InvalidArgument naming the field, NotFound for another model."""
        self._check_model(request.model)
        return await self._prompts.text(request.token_ids, self._identity.vocab_size, tenant)

    def _context(self, adapter_cid: str | None, sampling: SamplingParams) -> PolicyContext:
        return PolicyContext(
            base_cid=self._identity.base_cid,
            loaded=self._identity.drafters,
            profile_passed=self._identity.may_draft,
            methods=self._identity.methods_known,
            ledger_known=self._halts.known and self._heads.known,
            halted=tuple(self._halts.scopes),
            max_temperature=self._rules.max_temperature,
            off_when_halted=self._rules.off_when_halted,
            heads=self._heads.state,
            adapter_cid=adapter_cid,
            not_drafted=self._identity.not_drafted(sampling) if self._identity.drafters else None,
        )

    def _adapter(self, request: pb.GenerateRequest) -> str | None:
        if not request.HasField("adapter"):
            return None
        found = self._identity.adapter_cid(request.adapter)
        if found is None:
            loaded = ", ".join(each.name for each in self._identity.adapters)
            hint = f"loaded are {loaded}" if loaded else "this server has no adapters; leave the field out"
            raise NotFound("adapter", request.adapter, hint)
        return found

    def _check_model(self, model: str) -> None:
        if model not in ("", self._identity.name, self._identity.base_cid):
            raise NotFound("model", model, f"this server serves {self._identity.name}")

    def _check_names(self, request: pb.GenerateRequest) -> None:
        self._check_model(request.model)
        if request.request_id and _REQUEST_ID.fullmatch(request.request_id) is None:
            raise InvalidArgument("request_id", "expected 1 to 128 printable ASCII characters")
        if request.nonce and _REQUEST_ID.fullmatch(request.nonce) is None:
            raise InvalidArgument("nonce", "expected 1 to 128 printable ASCII characters")
        try:
            checked_name(request.tenant or DEFAULT_TENANT)
        except ValueError as error:
            raise InvalidArgument("tenant", str(error)) from None


@dataclass(frozen=True, slots=True)
class TenantGrammars:
    """The grammar compiler for the requests of one tenant."""

    grammars: Grammars
    tenant: str
    budget: GrammarBudget | None

    async def compiled(self, source: StructuredOutputs | None, sequences: int = 0) -> Grammar | None:
        """None without a constraint. `sequences` as in `Grammars.compiled`.

        Raises InvalidArgument naming the field and the place, ResourceExhausted if too many grammars of the tenant wait
        or its quota is used up, Unavailable if the grammar takes too long.
        """
        if source is None:
            return None
        with engine_errors("prompt"):
            return await self.grammars.compiled(source, self.tenant, self.budget, sequences)


async def calls_held(
    tools: Tools, text: StructuredOutputs | None, codec: TextCodec, grammars: TenantGrammars, threads: TenantThreads
) -> StructuredOutputs:
    """The constraint of an output that calls these tools, or is text that keeps to `text`.

    Raises InvalidArgument naming the tool, or the constraint, and the place in it, or the parallel calls that are not
    to be.
    """
    await grammars.compiled(text)
    for path, schema in tools.schemas():  # each alone, so that errors name the place in it
        try:
            await grammars.compiled(StructuredOutputs("json", schema))
        except InvalidArgument as error:
            raise InvalidArgument(path, _cause(error)) from error
    try:
        write = partial(tools.grammar, codec.tool_calls, codec.markup, codec.hidden, text)
        written = await threads.run(write, grammars.tenant)
    except ValueError as error:  # a number that a grammar cannot express, unchecked before if another engine compiles
        raise InvalidArgument("messages.tools", str(error)) from error
    source = StructuredOutputs("grammar", written)
    try:
        await grammars.compiled(source)
    except InvalidArgument as error:
        if tools.only_single:
            raise InvalidArgument("messages.parallel_tool_calls", f"is false: its grammar {_cause(error)}") from error
        raise InvalidArgument("messages.tools", f"their grammar {_cause(error)}") from error
    return source


def _thoughts(
    codec: TextCodec, chat: pb.ChatMessages, prompt: Prompt, asked: StructuredOutputs | None
) -> ThoughtSyntax | None:
    """The syntax of the output's thoughts, also if the continued message has begun one; None if it has none: under a
    constraint, or in the rest of a message, ordinary words are no marks.
    """
    if (syntax := codec.thoughts(prompt.token_ids)) is None:
        return None
    if asked is not None or (prompt.tools is not None and prompt.tools.required):
        return None if syntax.begun or syntax.bare else syntax
    if not chat.continue_final_message:
        return syntax
    if syntax.bare:
        return syntax if syntax.begun else None
    return replace(syntax, begun=syntax.begun or syntax.is_open(chat.messages[-1].content))


def _cause(error: InvalidArgument) -> str:
    return error.__cause__.message if isinstance(error.__cause__, EngineError) else str(error)
