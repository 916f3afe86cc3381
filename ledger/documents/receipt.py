"""The receipt of one finished choice of one request: its inputs, its computation and its output."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, ClassVar

from msgspec import Meta, field

from ledger.documents.engine_profile import EngineVersion
from ledger.encoding.commitment import STRUCTURED_OUTPUTS_DOMAIN, commit_text
from ledger.encoding.document import (
    Cid,
    Count,
    Digest,
    Document,
    Name,
    Nonce,
    NotNegative,
    Number,
    Part,
    Positive,
    Reason,
    ReceiptId,
    Seed,
    Share,
    Text,
    Time,
    TokenId,
    form,
    one_of,
    written,
)
from ledger.errors import FormatError

FINISH_REASONS = ("stop", "length", "cancelled", "error")
OFF = "off"
REPLAYED = "replayed"
ENGINE = "engine"
"""The method of another engine's speculation, of any kind, and the source of its counts."""
SPEEDUP_BASES = (REPLAYED, "calibrated")
"""`calibrated`, an estimate from steps timed at start, is in older documents and is no longer written."""

_Engine = Annotated[
    str, form("[a-z][a-z0-9_.-]{0,31}/[0-9a-zA-Z.+-]{1,31}", "a library and its version, as llguidance/1.9.1")
]
_FinishReason = Annotated[str, one_of(FINISH_REASONS)]
_SpeedupBasis = Annotated[str, one_of(SPEEDUP_BASES)]
_StopString = Annotated[str, Meta(min_length=1)]
_StopReason = Annotated[str, Meta(min_length=1, max_length=1024)] | TokenId


class StructuredOutputsPart(Part, frozen=True):
    """The constraint that an output followed. `commitment` is to its text, with the prompt's salt. `engine` is the
    library, with its version, that decided which tokens were allowed: a replay needs the same library.
    """

    kind: Name
    commitment: Digest
    engine: _Engine

    @classmethod
    def of(cls, kind: str, text: str, prompt_salt: bytes, engine: str) -> StructuredOutputsPart:
        return cls(kind, commit_text(STRUCTURED_OUTPUTS_DOMAIN, prompt_salt, text), engine)

    def check_text(self, text: str, prompt_salt: bytes) -> None:
        """Raises FormatError unless this is the constraint's text."""
        if commit_text(STRUCTURED_OUTPUTS_DOMAIN, prompt_salt, text) != self.commitment:
            raise FormatError("content.structured_outputs", "with this salt, is not what the receipt commits to")


class ThoughtsPart(Part, frozen=True):
    """The form of a thought at the beginning of an output: `open`, the thought, one of `closes`; without `open` if the
    prompt has `begun` it. In its place may be the channel of a closing `assistant` channel, in which no stop string
    counts, either.
    """

    open: _StopString
    closes: tuple[_StopString, ...]
    begun: bool


class Sampling(Part, frozen=True):
    """Sampling parameters after defaults and clamping; with base, adapter and prompt they determine every token.

    Names and defaults come from the engine's SamplingParams; `choice` is the receipt's number among the `n` of its
    request. `logprobs` is not here: it does not change tokens. Documents without a constraint lack
    `structured_outputs`. No stop string counts within `thoughts`, nor in the white space around them; documents without
    stop strings, of models without thoughts, of other engines, and older ones lack it.
    """

    temperature: NotNegative = written(0.0)
    top_p: Share = written(1.0)
    top_k: Count = written(0)
    min_p: Share = written(0.0)
    seed: Seed = written(Seed(0))
    max_tokens: Positive = written(128)
    min_tokens: Count = written(0)
    stop: tuple[_StopString, ...] = written(())
    stop_token_ids: tuple[TokenId, ...] = written(())
    ignore_eos: bool = written(False)
    presence_penalty: Number = written(0.0)
    frequency_penalty: Number = written(0.0)
    repetition_penalty: NotNegative = written(1.0)
    logit_bias: tuple[tuple[TokenId, Number], ...] = written(())
    n: Positive = written(1)
    choice: Count = written(0)
    structured_outputs: StructuredOutputsPart | None = None
    thoughts: ThoughtsPart | None = None


class PromptPart(Part, frozen=True):
    """The prompt's length in tokens and the salted commitment to its ids.

    `text_commitment` commits to the caller's text or conversation; `chat_template` is the digest of a conversation's
    template. `cached_tokens` is the number of prompt tokens that another engine than kolm's took from its cache,
    by its own statement; 0 if it states none. Receipts of kolm's engine lack it, older documents lack all three.
    """

    tokens: Positive
    commitment: Digest
    text_commitment: Digest | None = None
    chat_template: Digest | None = None
    cached_tokens: Count | None = None


class OutputPart(Part, frozen=True):
    """The output's length, the salted commitment to its ids, its finish reason, and the stream digest over its logits.

    `stop_reason` is the stop string or token id that matched. `min_margin` is the least distance between the two best
    logits over the output; null without tokens or logits. `text_commitment` commits to the served text, without a
    matched stop string; older documents lack it.
    """

    tokens: Count
    commitment: Digest
    finish_reason: _FinishReason
    stream_digest: Digest
    stop_reason: _StopReason | None = written(None)
    min_margin: NotNegative | None = written(None)
    text_commitment: Digest | None = None


class SpecDecode(Part, frozen=True):
    """The speculative decoding of this output, and whether it is known to be exact. Field names are the published ones.

    `verified_identical_to_off` is true or false only if a replay with speculation off was compared before signing;
    otherwise it is null, and the verdict entry has the answer. `wall_clock_speedup` is null if and only if
    `speedup_basis` is, and measured only if that is `replayed`. `acceptance_rate` is accepted / proposed tokens; null
    without proposed tokens. `mean_acceptance_length` is emitted tokens per target pass of the decode phase; null
    without one. `k` is null for methods without a draft depth.

    If `auto` could change methods within the request, `method` is its first method, and `passes_by_method` counts
    target passes by the method of the verified draft; passes without a draft count as `off`. Otherwise it is empty, and
    not a member of the document. The same holds for `gains`, the reason: for each
    method that drafted, the mean time that a pass saved, in times of a token without drafts, as the server measured it.

    For another engine than kolm's, the speculating method is ENGINE. Its counts are its own statement (`reported_by`),
    and all three are null if it states nothing. `unverified` is the reason why a requested comparison before signing
    had no result: UNSTABLE, as the engine differs from itself, or UNCHECKED with its reason.
    """

    method: Name
    requested_method: Name
    tokens_proposed: Count | None
    tokens_accepted: Count | None
    target_passes: Count | None
    head_cid: Cid | None = written(None)
    k: Positive | None = written(None)
    acceptance_rate: Share | None = written(None)
    mean_acceptance_length: NotNegative | None = written(None)
    wall_clock_speedup: NotNegative | None = written(None)
    speedup_basis: _SpeedupBasis | None = written(None)
    verified_identical_to_off: bool | None = written(None)
    fallback_reason: Text | None = written(None)
    passes_by_method: Mapping[Name, Positive] = field(default_factory=dict)
    gains: Mapping[Name, Number] = field(default_factory=dict)
    reported_by: Annotated[str, one_of((ENGINE,))] | None = None
    unverified: Reason | None = None


class Receipt(Document, tag="kolm.receipt.v1", frozen=True):
    """A `kolm.receipt.v1` document. Signed by a key of role `receipts`; one for each choice of a request.

    `profile_proven`: whether the server's numerics profile had passed its probe, so that rows could be computed in
    batches; otherwise they were computed one at a time, with speculation off. Older documents lack the member (None:
    unknown). `nonce` is the caller's, if one was sent. `engine` is another engine than kolm's that computed the output,
    with its version; `profile_cid` then is the cid of its EngineProfile, and `output.stream_digest` is over the tokens
    alone. `beside_others`: whether it computed other sequences of this server at the same time, which may change its
    logits; only receipts of other engines have the member.
    """

    SIGNERS: ClassVar = ("receipts",)

    receipt_id: ReceiptId
    issued_at: Time
    tenant: Text
    request_id: Text
    base_cid: Cid
    tokenizer_cid: Cid
    profile_cid: Cid
    halt_epoch: Count
    sampling: Sampling
    prompt: PromptPart
    output: OutputPart
    spec_decode: SpecDecode
    adapter_cid: Cid | None = written(None)
    profile_proven: bool | None = None
    nonce: Nonce | None = None
    engine: EngineVersion | None = None
    beside_others: bool | None = None

    @property
    def overclaim(self) -> str | None:
        """A description of a claimed speedup above the tokens per pass, or without a draft. Such a speedup cannot have
        been measured: a pass of the target costs no less when it verifies drafts. The claim is well-formed, and does
        not affect the proofs about the tokens; earlier receipts may have one.
        """
        block = self.spec_decode
        if block.wall_clock_speedup is None:
            return None
        if not block.tokens_proposed:
            return f"claims a speedup of {block.wall_clock_speedup:.2f} with nothing drafted"
        most = self.output.tokens / block.target_passes if block.target_passes else 0.0
        if block.wall_clock_speedup <= most:
            return None
        return f"claims a speedup of {block.wall_clock_speedup:.2f} at {most:.2f} tokens per pass"

    @property
    def measured_speedup(self) -> float | None:
        """The speedup that a replay measured; None without a replay, and for an impossible claim."""
        block = self.spec_decode
        return block.wall_clock_speedup if block.speedup_basis == REPLAYED and self.overclaim is None else None

    def check(self) -> None:
        _check_sampling(self.sampling)
        _check_speculation(self.spec_decode)
        _check_output(self)


def _check_sampling(sampling: Sampling) -> None:
    if sampling.choice >= sampling.n:
        raise FormatError("sampling.choice", f"expected less than n = {sampling.n}")
    if any(left[0] >= right[0] for left, right in pairwise(sampling.logit_bias)):
        raise FormatError("sampling.logit_bias", "expected token ids in ascending order, each once")
    if sampling.thoughts is not None and not (sampling.stop and sampling.thoughts.closes):
        raise FormatError("sampling.thoughts", "expected texts that close them, and stop strings")


def _check_output(receipt: Receipt) -> None:
    """Raises FormatError unless a receipt's statements about passes follow from its output.

    Each pass emits the draft tokens that it accepts and a token of the target; the pass in which an output ended with
    an error may have emitted fewer.
    """
    block, output = receipt.spec_decode, receipt.output
    if receipt.engine is not None:
        _check_foreign(receipt)
        return
    others = {
        "spec_decode.reported_by": block.reported_by, "spec_decode.unverified": block.unverified,
        "prompt.cached_tokens": receipt.prompt.cached_tokens, "beside_others": receipt.beside_others,
    }  # fmt: skip
    for name, value in others.items():
        if value is not None:
            raise FormatError(name, "expected to be absent, as kolm's own engine computed the output")
    emitted = (block.target_passes or 0) + (block.tokens_accepted or 0)
    if output.finish_reason != "error" and output.tokens != emitted:
        expected = f"expected output.tokens = {output.tokens} less target_passes = {block.target_passes}"
        raise FormatError("spec_decode.tokens_accepted", expected)
    _check_acceptance_length(receipt)
    if receipt.profile_proven is False and block.method != OFF:
        raise FormatError("profile_proven", f"is false, so the method has to be {OFF}; it is {block.method}")


def _check_acceptance_length(receipt: Receipt) -> None:
    block, tokens = receipt.spec_decode, receipt.output.tokens
    length = tokens / block.target_passes if block.target_passes else None
    if block.mean_acceptance_length != length:
        expected = "null, as no pass is known" if length is None else f"output.tokens / target_passes = {length}"
        raise FormatError("spec_decode.mean_acceptance_length", f"expected {expected}")


def _check_foreign(receipt: Receipt) -> None:
    """Raises FormatError unless a receipt states only facts that kolm knows about another engine's output: no logits,
    no proven profile, no counts by kolm.
    """
    block = receipt.spec_decode
    if block.method not in (ENGINE, OFF):
        raise FormatError("spec_decode.method", f"expected {ENGINE} or {OFF}, as the output is of {receipt.engine}")
    if block.reported_by != ENGINE:
        raise FormatError("spec_decode.reported_by", f"expected {ENGINE}, as the output is of {receipt.engine}")
    if block.unverified is not None and block.verified_identical_to_off is not None:
        raise FormatError("spec_decode.unverified", "expected to be absent if verified_identical_to_off has an answer")
    if receipt.output.min_margin is not None:
        raise FormatError("output.min_margin", f"expected null, as the output is of {receipt.engine}")
    if receipt.profile_proven is not None:
        raise FormatError("profile_proven", f"expected to be absent, as the output is of {receipt.engine}")
    if (receipt.prompt.cached_tokens or 0) > receipt.prompt.tokens:
        raise FormatError("prompt.cached_tokens", f"expected at most prompt.tokens = {receipt.prompt.tokens}")
    _check_acceptance_length(receipt)


def _check_speculation(block: SpecDecode) -> None:
    if block.method == "auto":
        raise FormatError("spec_decode.method", "expected the method that ran; auto chooses one")
    if block.gains and not block.passes_by_method:
        raise FormatError("spec_decode.gains", "expected to be absent, as passes_by_method is")
    if "auto" in block.passes_by_method:
        raise FormatError("spec_decode.passes_by_method.auto", "expected methods that ran; auto chooses one")
    if block.passes_by_method and sum(block.passes_by_method.values()) != block.target_passes:
        expected = f"expected counts that add up to target_passes = {block.target_passes}"
        raise FormatError("spec_decode.passes_by_method", expected)
    proposed, accepted, passes = block.tokens_proposed, block.tokens_accepted, block.target_passes
    counts = {"tokens_proposed": proposed, "tokens_accepted": accepted, "target_passes": passes}
    missing = [name for name, count in counts.items() if count is None]
    if missing and (len(missing) < len(counts) or block.reported_by is None):
        raise FormatError(f"spec_decode.{missing[0]}", "expected a number, or null in all counts")
    if (accepted or 0) > (proposed or 0):
        raise FormatError("spec_decode.tokens_accepted", f"expected at most tokens_proposed = {proposed}")
    rate = accepted / proposed if accepted is not None and proposed else None
    if block.acceptance_rate != rate:
        expected = "null, as nothing was proposed" if rate is None else f"tokens_accepted / tokens_proposed = {rate}"
        raise FormatError("spec_decode.acceptance_rate", f"expected {expected}")
    _check_methods(block)
    if (block.wall_clock_speedup is None) != (block.speedup_basis is None):
        raise FormatError("spec_decode.speedup_basis", "expected null if and only if wall_clock_speedup is null")


def _check_methods(block: SpecDecode) -> None:
    """Raises FormatError if a method that drafted is called `off`, or has another name than the requested method."""
    if block.requested_method != "auto" and block.method not in (block.requested_method, OFF):
        raise FormatError("spec_decode.method", f"expected {block.requested_method}, which was asked for, or {OFF}")
    drafted = sum(count for method, count in block.passes_by_method.items() if method != OFF)
    if block.method == OFF and (drafted or block.head_cid is not None or block.k is not None):
        raise FormatError("spec_decode.method", f"is {OFF}, with a draft head, a draft depth or passes of a method")
    # Each pass that verified a draft has verified at least one of its tokens, and no other pass has.
    nothing = block.method == OFF or not block.target_passes or (bool(block.passes_by_method) and not drafted)
    if nothing and block.tokens_proposed:
        raise FormatError("spec_decode.tokens_proposed", "expected 0, as no pass verified a draft")
    if (block.tokens_proposed or 0) < drafted:
        raise FormatError("spec_decode.tokens_proposed", f"expected at least one for each of {drafted} passes")
