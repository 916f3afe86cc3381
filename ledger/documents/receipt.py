"""The receipt of one finished choice of one request: its inputs, how it was computed, and its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.documents.sampling import Sampling
from ledger.documents.spec_decode import OFF, REPLAYED, SpecDecode
from ledger.encoding.fields import Fields
from ledger.errors import FormatError

FINISH_REASONS = ("stop", "length", "cancelled", "error")


@dataclass(frozen=True, slots=True)
class PromptPart:
    """The prompt's length in tokens and the salted commitment to its ids.

    `text_commitment` is to what the caller sent, where that was a text or a conversation; of a conversation,
    `chat_template` is the digest of the template that laid it out. Older documents lack both.
    """

    tokens: int
    commitment: str
    text_commitment: str | None = None
    chat_template: str | None = None

    def to_document(self) -> dict[str, Any]:
        more = {"text_commitment": self.text_commitment, "chat_template": self.chat_template}
        return {"tokens": self.tokens, "commitment": self.commitment, **_present(more)}

    @classmethod
    def from_fields(cls, fields: Fields) -> PromptPart:
        part = cls(
            tokens=fields.integer("tokens", 1),
            commitment=fields.digest("commitment"),
            text_commitment=fields.digest("text_commitment") if fields.has("text_commitment") else None,
            chat_template=fields.digest("chat_template") if fields.has("chat_template") else None,
        )
        fields.close()
        return part


@dataclass(frozen=True, slots=True)
class OutputPart:
    """The output's length, the salted commitment to its ids, why it ended, and the stream digest over its logits.

    `stop_reason` is the stop string or token id that matched. `min_margin` is the least distance between the two best
    logits over the output; null for an output without tokens. `text_commitment` is to the text that was served, without
    a matched stop string; older documents lack it.
    """

    tokens: int
    commitment: str
    finish_reason: str
    stream_digest: str
    stop_reason: str | int | None = None
    min_margin: float | None = None
    text_commitment: str | None = None

    def to_document(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "commitment": self.commitment,
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "stream_digest": self.stream_digest,
            "min_margin": self.min_margin,
            **_present({"text_commitment": self.text_commitment}),
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> OutputPart:
        part = cls(
            tokens=fields.integer("tokens"),
            commitment=fields.digest("commitment"),
            finish_reason=fields.choice("finish_reason", FINISH_REASONS),
            stream_digest=fields.digest("stream_digest"),
            stop_reason=_stop_reason(fields),
            min_margin=fields.optional("min_margin", lambda name: fields.number(name, 0.0)),
            text_commitment=fields.digest("text_commitment") if fields.has("text_commitment") else None,
        )
        fields.close()
        return part


@dataclass(frozen=True, slots=True)
class Receipt:
    """A `kolm.receipt.v1` document. Signed by a key of role `receipts`; one for each choice of a request.

    `profile_proven`: whether the server's numerics profile had passed its probe, so that rows could be
    computed side by side; where not, they were computed one at a time, with speculation off. Older documents
    lack the member (None: unknown). `nonce` is the caller's own, where one was sent.
    """

    TYPE: ClassVar[str] = "kolm.receipt.v1"

    receipt_id: str
    issued_at: str
    tenant: str
    request_id: str
    base_cid: str
    tokenizer_cid: str
    profile_cid: str
    halt_epoch: int
    sampling: Sampling
    prompt: PromptPart
    output: OutputPart
    spec_decode: SpecDecode
    adapter_cid: str | None = None
    profile_proven: bool | None = None
    nonce: str | None = None

    @property
    def overclaim(self) -> str | None:
        """The speedup that this receipt claims above its tokens per pass, or with nothing drafted, in words.

        No such speedup can have been measured: a pass of the target costs no less for what it verifies. It is no error
        of form, and takes nothing from what is proven about the tokens; receipts of before may have one.
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
        """The speedup that a replay measured; None without one, and for a claim that cannot be one."""
        block = self.spec_decode
        return block.wall_clock_speedup if block.speedup_basis == REPLAYED and self.overclaim is None else None

    def to_document(self) -> dict[str, Any]:
        return _present({"profile_proven": self.profile_proven, "nonce": self.nonce}) | {
            "type": self.TYPE,
            "receipt_id": self.receipt_id,
            "issued_at": self.issued_at,
            "tenant": self.tenant,
            "request_id": self.request_id,
            "base_cid": self.base_cid,
            "adapter_cid": self.adapter_cid,
            "tokenizer_cid": self.tokenizer_cid,
            "profile_cid": self.profile_cid,
            "halt_epoch": self.halt_epoch,
            "sampling": self.sampling.to_document(),
            "prompt": self.prompt.to_document(),
            "output": self.output.to_document(),
            "spec_decode": self.spec_decode.to_document(),
        }

    @classmethod
    def from_document(cls, document: object) -> Receipt:
        """The receipt that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        receipt = cls(
            receipt_id=fields.receipt_id("receipt_id"),
            issued_at=fields.time("issued_at"),
            tenant=fields.text("tenant"),
            request_id=fields.text("request_id"),
            base_cid=fields.cid("base_cid"),
            adapter_cid=fields.optional("adapter_cid", fields.cid),
            tokenizer_cid=fields.cid("tokenizer_cid"),
            profile_cid=fields.cid("profile_cid"),
            profile_proven=fields.boolean("profile_proven") if fields.has("profile_proven") else None,
            nonce=fields.text("nonce", longest=128) if fields.has("nonce") else None,
            halt_epoch=fields.integer("halt_epoch"),
            sampling=Sampling.from_fields(fields.part("sampling")),
            prompt=PromptPart.from_fields(fields.part("prompt")),
            output=OutputPart.from_fields(fields.part("output")),
            spec_decode=SpecDecode.from_fields(fields.part("spec_decode")),
        )
        fields.close()
        _check(receipt)
        return receipt


def _check(receipt: Receipt) -> None:
    """What a receipt says of its passes has to follow from what it says of its output. Raises FormatError.

    Each pass emits the draft tokens that it accepts and one of the target's own; the pass in which an output ended with
    an error may have emitted some of that.
    """
    block, output = receipt.spec_decode, receipt.output
    emitted = block.target_passes + block.tokens_accepted
    if output.finish_reason != "error" and output.tokens != emitted:
        expected = f"expected output.tokens = {output.tokens} less target_passes = {block.target_passes}"
        raise FormatError("spec_decode.tokens_accepted", expected)
    length = output.tokens / block.target_passes if block.target_passes else None
    if block.mean_acceptance_length != length:
        expected = "null, as there was no pass" if length is None else f"output.tokens / target_passes = {length}"
        raise FormatError("spec_decode.mean_acceptance_length", f"expected {expected}")
    if receipt.profile_proven is False and block.method != OFF:
        raise FormatError("profile_proven", f"is false: nothing may have drafted, and the method is {block.method}")


def _present(members: dict[str, Any]) -> dict[str, Any]:
    """Members that documents may lack, where there is something to say."""
    return {name: value for name, value in members.items() if value is not None}


def _stop_reason(fields: Fields) -> str | int | None:
    value = fields.read("stop_reason")
    if value is None:
        return None
    if isinstance(value, str):
        return fields.text("stop_reason", longest=1024)
    if isinstance(value, int):
        return fields.integer("stop_reason", 0, 2**32 - 1)
    raise FormatError(fields.path("stop_reason"), "expected a stop string, a token id or null")
