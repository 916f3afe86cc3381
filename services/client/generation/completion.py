"""Answers of a generation server, and its description of itself, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from services.client.generation.request import Called, ThoughtSyntax, ToolCall, ToolCallSyntax
from services.client.ledger.log import Scope

if TYPE_CHECKING:
    import ledger.documents.receipt
    from ledger.documents.content import Content
    from services.client.verification import Trusted


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of prompt and output. `cached_prompt_tokens` of the prompt were not computed again.

    `accepted_prediction_tokens` of the output were drafted from the request's prediction, as were the rejected ones,
    which are not part of it.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Metrics:
    """Counts of speculation; names as in vLLM. Times in seconds; the speedup is None if it was not measured.

    `first_token_seconds` is the time to the first token, 0 from servers without it; `decode_seconds` follow.
    """

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_rate: float
    mean_acceptance_length: float
    num_accepted_tokens_per_pos: tuple[int, ...]
    target_passes: int
    first_token_seconds: float
    decode_seconds: float
    wall_clock_speedup: float | None
    speedup_basis: str
    method: str
    requested_method: str
    fallback_reason: str | None
    passes_by_method: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Receipt:
    """The signed receipt of one choice: DSSE bytes exactly as signed. `ledger_index` is None while `pending`.

    `content` and `text`, the output's, open its commitments; clients have checked that they do.
    """

    envelope: bytes
    receipt_id: str
    ledger_index: int | None
    pending: bool
    content: Content
    text: str = field(repr=False)

    def verify(self, trusted: Trusted) -> ledger.documents.receipt.Receipt:
        """The signed document, if a key of role receipts that you trust has signed it, over this very content.

        `trusted` is what `kolm.verify` takes: a folder of public keys, or keys. Raises FormatError, SignatureError,
        KeyFileError.
        """
        from ledger.audit.log_verification import verify_receipt
        from ledger.documents.content import check_opened
        from services.client.verification import trusted_keys

        document = verify_receipt(self.envelope, trusted_keys(trusted))
        check_opened(document, self.content, self.text)
        return document


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its natural-log probability. `token_bytes` are its bytes if `text` shows U+FFFD and the engine
    sends them. The output's text leaves a `special` token out; its `text` is its name.
    """

    token_id: int
    text: str
    logprob: float
    token_bytes: bytes = b""
    special: bool = False


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The emitted token and the best alternatives at one position."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The request with every default filled in and every name turned into an identifier.

    `sampling` is by field name; `profile_proven` is None for another engine. `tool_calls` is the syntax of calls in the
    text, None without tools, `thoughts` that of thoughts, None for a model without them. `model` is the served name.
    """

    request_id: str
    base_cid: str
    tokenizer_cid: str
    profile_cid: str
    profile_proven: bool | None
    adapter_cid: str | None
    sampling: dict[str, Any]
    requested_method: str
    method: str
    fallback_reason: str | None
    head_cid: str | None
    k: int | None
    halt_epoch: int
    prompt_tokens: int
    prompt_token_ids: tuple[int, ...]
    prompt_salt: bytes = field(repr=False)
    tool_calls: ToolCallSyntax | None = None
    thoughts: ThoughtSyntax | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One continuation. `finish_reason` is stop, length, cancelled or error; `stop_reason` is the match, or None.

    `text` is the whole output, thoughts and calls of tools as the model wrote them included; `content` is the rest.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | int | None
    logprobs: tuple[PositionLogprobs, ...]
    receipt: Receipt | None
    metrics: Metrics
    called: Called | None = None

    @property
    def content(self) -> str:
        return self.text if self.called is None else self.called.content

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return () if self.called is None else self.called.calls

    @property
    def cut_off(self) -> bool:
        """Whether the output ended within a call: the arguments of the last call may be no JSON."""
        return self.called is not None and self.called.cut_off

    @property
    def thoughts(self) -> str:
        """The model's thoughts before its answer, if it shows them."""
        return "" if self.called is None else self.called.thoughts


@dataclass(frozen=True, slots=True)
class Completion:
    """Every choice of one request; the properties are the first choice's, which is the only one unless n > 1.

    `promise` is as in `Started`.
    """

    choices: tuple[Choice, ...]
    usage: Usage
    metrics: Metrics
    resolved: Resolved
    promise: bytes | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def receipt(self) -> Receipt | None:
        return self.choices[0].receipt

    @property
    def ledger_index(self) -> int | None:
        return self.receipt.ledger_index if self.receipt else None


@dataclass(frozen=True, slots=True)
class Started:
    """First event of a stream. `promise`: the signed promise of its receipts, None from servers that make none.
    `receipt_ids`: the ids that they will have, by choice.

    `ledger.documents.promise.open_promise` checks its signature. Keep it until the receipts are in the log.
    """

    resolved: Resolved
    promise: bytes | None = field(default=None, repr=False)
    receipt_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """The addition of one step to one choice; `text` may be empty while characters or stop strings are undecided."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event of one choice."""

    index: int
    finish_reason: str
    stop_reason: str | int | None
    usage: Usage
    metrics: Metrics
    receipt: Receipt | None


Event = Started | Chunk | Finished


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a prompt, and the context that prompt and output have together."""

    token_ids: tuple[int, ...]
    context_length: int


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A draft head of a server. Without a name it is from an unpublished, unsigned folder."""

    head_cid: str
    name: str | None
    publication_index: int | None
    withdrawn: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """A whole number from `least` to `most` that a request may set for a method."""

    name: str
    meaning: str
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class DraftMethod:
    """A method of speculation that a server can run."""

    name: str
    meaning: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model and methods of a server.

    `profile` is the parsed numerics profile, `adapters` their identifiers by name, `heads` the draft heads and
    `draft_methods` the methods that draft, the preferred one first. `engine` is the engine that computes if not kolm's
    own, such as vllm/0.32.0, of which nothing is probed.
    """

    model: str
    base_cid: str
    tokenizer_cid: str
    profile_cid: str
    profile: dict[str, Any]
    probe_passed: bool
    architecture: str
    vocab_size: int
    context_length: int
    methods: tuple[str, ...]
    halted_scopes: tuple[Scope, ...]
    halt_epoch: int
    adapters: Mapping[str, str]
    heads: tuple[LoadedHead, ...]
    draft_methods: tuple[DraftMethod, ...]
    engine: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a server: sequences, cache blocks, receipts without the ledger's confirmation, seconds up."""

    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    outbox_pending: int
    uptime_seconds: float
