"""A request to the engine: one sequence, its sampling parameters, its constraint, and the errors that refuse it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal, get_args

Kind = Literal["json", "json_object", "regex", "choice", "grammar"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MAX_TEXT = 256 * 1024  # characters
GRAMMAR_REVISION = 2
"""Revision of kolm's conversion of constraints to masks. It is increased when a text may give other masks."""
MAX_SEED = 2**64 - 1
MIN_TEMPERATURE = 1e-6  # least value above 0: far below, logits / temperature would overflow
MAX_TEMPERATURE = 100.0
MIN_REPETITION_PENALTY = 0.01  # far below, logits / penalty would overflow
MAX_REPETITION_PENALTY = 10.0
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_LENGTH = 256  # characters
_AUTHOR = "assistant"  # of gpt-oss's messages
RequestKey = tuple[str, int]
"""A request's id and the number of the choice."""


class EngineError(Exception):
    """A request that the engine refuses; nothing was started. `field`: the request's field at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class InvalidRequest(EngineError):
    """The request itself is wrong; sending it again will not help."""


class ContextExceeded(InvalidRequest):
    """Prompt and output together do not fit the context."""


class EngineFull(EngineError):
    """The queue of waiting requests is full; the same request may pass later."""


class EngineBusy(EngineError):
    """The request took too long, for reasons of load; the same request may pass later."""


class EngineStopped(EngineError):
    """The engine does not accept requests any more."""


class SpeculationAway(EngineStopped):
    """Another engine's server that speculates does not answer; the same request may pass with speculation off."""


class UnusableLogits(Exception):
    """A row of logits allows no token. It ends the sequence of the row, and no other."""


class GrammarLimit(UnusableLogits):
    """The output so far makes the constraint too costly to follow, on every machine and with every method."""


def grammar_engine() -> str:
    """Name and version of the grammar library and kolm's revision, which together determine the masks."""
    return f"llguidance/{version('llguidance')}+kolm.{GRAMMAR_REVISION}"


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """One constraint, under vLLM's names.

    `text` is a JSON schema (draft 2020-12) for `json`, a regular expression that the whole output matches for `regex`,
    a JSON array of texts for `choice`, a Lark or GBNF grammar for `grammar`, nothing for `json_object`.
    """

    kind: Kind
    text: str = ""


if TYPE_CHECKING:
    from llguidance import LLMatcher


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters with the names of vLLM and OpenAI, fully resolved: no default is applied elsewhere."""

    temperature: float = 0.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 is all
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int = 128
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # alternatives reported for each position; does not change tokens
    logit_bias: tuple[tuple[int, float], ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    structured_outputs: StructuredOutputs | None = None

    def check(self, vocab_size: int) -> None:
        """Raises InvalidRequest, naming the field, if a value is out of range."""
        _real("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        if 0.0 < self.temperature < MIN_TEMPERATURE:
            raise InvalidRequest("temperature", f"is {self.temperature:g}; expected 0, or at least {MIN_TEMPERATURE:g}")
        _real("top_p", self.top_p, 0.0, 1.0, above=True)
        _whole("top_k", self.top_k, 0, vocab_size)
        _real("min_p", self.min_p, 0.0, 1.0)
        _whole("seed", self.seed, 0, MAX_SEED)
        _whole("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _whole("min_tokens", self.min_tokens, 0, self.max_tokens)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _real("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if len(self.stop) > MAX_STOPS or any(not 0 < len(text) <= MAX_STOP_LENGTH for text in self.stop):
            raise InvalidRequest("stop", f"expected at most {MAX_STOPS} strings of 1 to {MAX_STOP_LENGTH} characters")
        for token in self.stop_token_ids:
            _whole("stop_token_ids", token, 0, vocab_size - 1)
        for token, bias in self.logit_bias:
            _whole("logit_bias", token, 0, vocab_size - 1)
            _real("logit_bias", bias, -100.0, 100.0)
        if len({token for token, _ in self.logit_bias}) < len(self.logit_bias):
            raise InvalidRequest("logit_bias", "names a token twice; expected one bias for each token")
        if self.structured_outputs is not None:
            if self.min_tokens:
                raise InvalidRequest(
                    "min_tokens", "cannot be combined with structured_outputs, which define the end of an output"
                )
            if self.ignore_eos and not self.stop_token_ids:
                raise InvalidRequest(
                    "ignore_eos", "leaves structured_outputs no token to end an output with; set stop_token_ids"
                )


@dataclass(slots=True)
class Grammar:
    """A constraint that `GrammarCompiler` has tried out. For use from any thread.

    `eos`: the model's end-of-sequence token, which represents the end of the grammar. `compile` makes a matcher;
    `compiled` are matchers made beforehand. Grammars of one constraint are equal.
    """

    source: StructuredOutputs
    eos: int
    vocab_size: int
    compile: Callable[[], LLMatcher] = field(repr=False, compare=False)
    compiled: deque[LLMatcher] = field(default_factory=deque, repr=False, compare=False)

    def matcher(self) -> LLMatcher:
        """A matcher at the beginning, for one thread.

        A copy of a matcher would share its lexer, and with it the fuel that is left and the failure: whether an output
        reaches a limit would depend on drafts and on other sequences.
        """
        try:
            return self.compiled.popleft()
        except IndexError:
            return self.compile()


@dataclass(frozen=True, slots=True)
class ThoughtSyntax:
    """The form of an output with thoughts: `open`, thought, one of `closes`, answer; or `bare` and the answer.

    The part of a closing after a space belongs to the answer. `begun`: the prompt ends with `open`.
    """

    open: str
    closes: tuple[str, ...]
    bare: str = ""
    begun: bool = False

    @property
    def heads(self) -> tuple[str, ...]:
        """Beginnings of an output without a thought: closings without their author, which the prompt names."""
        return tuple(close.removeprefix(_AUTHOR).strip() for close in self.closes if close.startswith(_AUTHOR))

    def is_open(self, text: str) -> bool:
        """Whether a text ends within a thought."""
        _, found, thought = text.rpartition(self.open)
        return bool(found) and not any(close in thought for close in self.closes)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate. `choice`: its number among the n sequences of a request, an input of the noise."""

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    choice: int = 0
    adapter: str | None = None  # identifier of a loaded adapter; None is the bare base
    method: str = "off"  # first drafter
    next_methods: tuple[str, ...] = ()  # drafters that take over, in this order, if one does not pay
    k: int | None = None  # greatest depth of drafts; None: chosen by the drafter
    parameters: Mapping[str, int] = field(default_factory=dict)  # of its methods, by name (`drafting.methods`)
    prediction: tuple[int, ...] = ()  # expected output, as a text to copy from; changes no token
    tenant: str | None = None  # owner of the datastores and cached prefixes that it may use
    priority: int = 0  # within its tenant; lower is served first
    deadline: float = math.inf  # on the engine's clock: it is cancelled then
    reuse: bool = True  # whether it may reuse cached prefixes; a replay computes everything
    grammar: Grammar | None = None  # of sampling.structured_outputs, compiled
    profile_cid: str | None = None  # the profile of its promise; None: any
    thoughts: ThoughtSyntax | None = None  # in which no stop string counts

    @property
    def key(self) -> RequestKey:
        return self.request_id, self.choice

    def check(self, vocab_size: int, context_length: int) -> None:
        """Raises InvalidRequest, naming the field, if the request cannot be served by a model of these sizes."""
        if not self.prompt:
            raise InvalidRequest("prompt", "is empty; expected at least one token")
        _check_ids("token_ids", self.prompt, vocab_size)
        _check_ids("prediction", self.prediction, vocab_size)
        self.sampling.check(vocab_size)
        if self.sampling.structured_outputs != (None if self.grammar is None else self.grammar.source):
            raise InvalidRequest("structured_outputs", "is not the grammar that was compiled for this request")
        total = len(self.prompt) + self.sampling.max_tokens
        if total > context_length:
            raise ContextExceeded(
                "max_tokens",
                f"{len(self.prompt)} prompt tokens + {self.sampling.max_tokens} new ones are too many: this model's "
                f"maximum context length is {context_length} tokens; shorten the prompt or ask for at most "
                f"{max(0, context_length - len(self.prompt))}",
            )


def _check_ids(field: str, ids: tuple[int, ...], vocab_size: int) -> None:
    """Raises InvalidRequest, naming the first id that is not in the vocabulary."""
    if min(ids, default=0) < 0 or max(ids, default=0) >= vocab_size:
        index, token = next((i, token) for i, token in enumerate(ids) if not 0 <= token < vocab_size)
        message = f"is {token} at index {index}; expected a whole number from 0 to {vocab_size - 1}"
        raise InvalidRequest(field, message)


def _real(field: str, value: float, low: float, high: float, above: bool = False) -> None:
    if not (math.isfinite(value) and low <= value <= high) or (above and value == low):
        least = f"above {low:g}" if above else f"at least {low:g}"
        raise InvalidRequest(field, f"is {value}; expected a number {least} and at most {high:g}")


def _whole(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRequest(field, f"is {value}; expected a whole number from {low} to {high}")
