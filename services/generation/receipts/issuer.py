"""Issues receipts of finished choices: signed documents, and the appends that deliver them to the ledger."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kolm.ledger.v1 import ledger_pb2
from ledger.documents.content import Content
from ledger.documents.promise import Promise, sign_promise
from ledger.documents.receipt import ENGINE, OutputPart, PromptPart, Receipt, SpecDecode
from ledger.documents.signed_document import sign_document
from ledger.encoding.commitment import (
    MESSAGES_DOMAIN,
    OUTPUT_DOMAIN,
    OUTPUT_TEXT_DOMAIN,
    PROMPT_DOMAIN,
    PROMPT_TEXT_DOMAIN,
    commit,
    commit_text,
    new_salt,
)
from ledger.encoding.stream_digest import token_digest
from ledger.encoding.text_forms import new_receipt_id, timestamp
from ledger.keys.signer import Signer
from services.client.ledger.log_wire import content_message
from services.generation.engine.events import EMPTY_OUTCOME, Outcome, SpeculationMetrics
from services.generation.requests.parameters import receipt_sampling
from services.generation.requests.resolution import Identity, Resolved


@dataclass(frozen=True, slots=True)
class Speedup:
    """Time without speculation divided by time with speculation; `basis`: how it was measured."""

    value: float
    basis: str


def replayed(off_seconds: float, metrics: SpeculationMetrics) -> Speedup | None:
    """The speedup against the decode time of a replay with speculation off. Both must have run alone.

    None if nothing was drafted, or if the ratio exceeds the tokens of a pass: a pass that verifies a draft is no
    cheaper than a plain pass, so such a ratio is noise of the machine.
    """
    if not metrics.num_draft_tokens or off_seconds <= 0 or metrics.decode_seconds <= 0:
        return None
    ratio = off_seconds / metrics.decode_seconds
    return Speedup(ratio, "replayed") if ratio <= metrics.mean_acceptance_length else None


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a comparison with speculation off before signing. `identical` is None if there was no comparison or
    no result; `unverified` is the reason, for other engines than kolm's.
    """

    identical: bool | None = None
    speedup: Speedup | None = None
    unverified: str | None = None


NOT_CHECKED = Checked()


@dataclass(frozen=True, slots=True)
class SignedReceipt:
    """A receipt: its id, the DSSE bytes exactly as signed, and the content of its commitments."""

    receipt_id: str
    envelope: bytes
    content: Content

    @property
    def append(self) -> ledger_pb2.AppendEntryRequest:
        """The request that appends the receipt and its content."""
        return ledger_pb2.AppendEntryRequest(envelope=self.envelope, content=content_message(self.content))


@dataclass(frozen=True, slots=True)
class SignedPromise:
    """The promise that a caller gets before the answer: a DSSE envelope.

    `unfinished`: a receipt for each choice, with finish reason `error` and no output. They are appended to the log if
    this process dies before the answer is complete.
    """

    envelope: bytes
    unfinished: tuple[SignedReceipt, ...]


class ReceiptIssuer:
    """Signs receipts with the key of role `receipts`."""

    def __init__(
        self,
        identity: Identity,
        key: Signer,
        promise_seconds: float,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`promise_seconds`: from a request's start to the promised time of its receipts in the log."""
        self._identity = identity
        self._key = key
        self._promise = timedelta(seconds=promise_seconds)
        self._now = now

    def issue(
        self,
        receipt_id: str,
        resolved: Resolved,
        choice: int,
        outcome: Outcome,
        checked: Checked = NOT_CHECKED,
        *,
        alone: bool | None = None,
    ) -> SignedReceipt:
        """Sign the receipt of an outcome. `promise` signs EMPTY_OUTCOME under the same id, for the log if this process
        dies. `alone`: whether no other sequence ran at the same time; None if it did not run.
        """
        asked, engine = resolved.sampling, resolved.engine
        source = asked.structured_outputs
        text = None if source is None else source.text
        content = Content(resolved.prompt_salt, resolved.prompt, new_salt(), outcome.token_ids, text)
        receipt = Receipt(
            receipt_id=receipt_id,
            issued_at=timestamp(self._now()),
            tenant=resolved.tenant,
            request_id=resolved.request_id,
            base_cid=self._identity.base_cid,
            adapter_cid=resolved.adapter_cid,
            tokenizer_cid=self._identity.tokenizer_cid,
            profile_cid=resolved.profile_cid,
            profile_proven=self._identity.probe_passed if engine is None else None,
            halt_epoch=resolved.halt_epoch,
            sampling=receipt_sampling(
                asked, resolved.choices, choice, resolved.prompt_salt, engine, resolved.unstopped
            ),
            nonce=resolved.nonce,
            prompt=self._prompt_part(
                resolved, None if engine is None or alone is None else outcome.metrics.cached_prompt_tokens
            ),
            output=_output_part(content, outcome, engine),
            spec_decode=_spec_decode(resolved, outcome, checked),
            engine=engine,
            beside_others=None if engine is None or alone is None else not alone,
        )
        return SignedReceipt(receipt_id, sign_document(receipt, self._key).to_bytes(), content)

    def promise(self, resolved: Resolved) -> SignedPromise:
        """The promise of one receipt for each choice of an accepted request."""
        now = self._now()
        unfinished = tuple(
            self.issue(new_receipt_id(now), resolved, choice, EMPTY_OUTCOME) for choice in range(resolved.choices)
        )
        promise = Promise(
            promised_at=timestamp(now),
            due=timestamp(now + self._promise),
            tenant=resolved.tenant,
            request_id=resolved.request_id,
            nonce=resolved.nonce,
            base_cid=self._identity.base_cid,
            profile_cid=resolved.profile_cid,
            prompt=self._prompt_part(resolved),
            choices=resolved.choices,
        )
        return SignedPromise(sign_promise(promise, self._key).to_bytes(), unfinished)

    def _prompt_part(self, resolved: Resolved, cached: int | None = None) -> PromptPart:
        salt, ids = resolved.prompt_salt, resolved.prompt
        domain = MESSAGES_DOMAIN if resolved.in_turns else PROMPT_TEXT_DOMAIN
        return PromptPart(
            tokens=len(ids),
            commitment=commit(PROMPT_DOMAIN, salt, ids),
            text_commitment=None if resolved.text is None else commit_text(domain, salt, resolved.text),
            chat_template=self._identity.chat_template if resolved.chat else None,
            cached_tokens=cached,
        )


def _output_part(content: Content, outcome: Outcome, engine: str | None) -> OutputPart:
    margin = outcome.min_margin
    return OutputPart(
        tokens=len(outcome.token_ids),
        commitment=commit(OUTPUT_DOMAIN, content.output_salt, content.output_token_ids),
        finish_reason=outcome.finish_reason,
        stream_digest=outcome.stream_digest if engine is None else token_digest(outcome.token_ids),
        stop_reason=outcome.stop_reason,
        min_margin=margin if margin is not None and math.isfinite(margin) else None,
        text_commitment=commit_text(OUTPUT_TEXT_DOMAIN, content.output_salt, outcome.text),
    )


def _spec_decode(resolved: Resolved, outcome: Outcome, checked: Checked) -> SpecDecode:
    decision, counts, speedup = resolved.decision, outcome.metrics, checked.speedup
    is_reported = resolved.engine is None or counts.reported_by == "engine"
    return SpecDecode(
        method=decision.method,
        requested_method=decision.requested_method,
        tokens_proposed=counts.num_draft_tokens if is_reported else None,
        tokens_accepted=counts.num_accepted_tokens if is_reported else None,
        target_passes=counts.target_passes if is_reported else None,
        reported_by=None if resolved.engine is None else ENGINE,
        head_cid=decision.head_cid,
        k=decision.k,
        acceptance_rate=counts.acceptance_rate if counts.num_draft_tokens else None,
        mean_acceptance_length=counts.mean_acceptance_length if counts.target_passes else None,
        wall_clock_speedup=None if speedup is None else speedup.value,
        speedup_basis=None if speedup is None else speedup.basis,
        verified_identical_to_off=checked.identical,
        unverified=checked.unverified,
        fallback_reason=decision.fallback_reason,
        passes_by_method=dict(counts.passes_by_method) if len(decision.drafters) > 1 else {},
        gains={name: round(gain, 3) + 0.0 for name, gain in counts.gains} if len(decision.drafters) > 1 else {},
    )
