"""Signed receipts to append, as the generation service makes them, without a model behind them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime

from ledger.documents.content import Content
from ledger.documents.receipt import OutputPart, PromptPart, Receipt
from ledger.documents.sampling import Sampling
from ledger.documents.signed_document import payload_type
from ledger.documents.spec_decode import SpecDecode
from ledger.encoding.canonical import canonical
from ledger.encoding.cid import cid
from ledger.encoding.commitment import OUTPUT_DOMAIN, PROMPT_DOMAIN, commit
from ledger.encoding.receipt_id import new_receipt_id
from ledger.encoding.stream_digest import StreamDigest
from ledger.encoding.timestamp import timestamp
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import sign

PROMPT_TOKENS, OUTPUT_TOKENS = 212, 128


def signed_receipts(key: SigningKey) -> Iterator[tuple[Receipt, bytes, Content]]:
    """Ever new receipts with their envelopes, and the content that they commit to."""
    prompt, output = tuple(range(PROMPT_TOKENS)), tuple(range(OUTPUT_TOKENS))
    stream = StreamDigest().hexdigest()
    number = 0
    while True:
        content = Content(os.urandom(32), prompt, os.urandom(32), output)
        receipt = _receipt(number, content, stream)
        # As `sign_document` does it, without reading the document back: a million of them are made.
        yield receipt, sign(canonical(receipt.to_document()), payload_type("receipt"), key).to_bytes(), content
        number += 1


def _receipt(number: int, content: Content, stream: str) -> Receipt:
    now = datetime.now(UTC)
    return Receipt(
        receipt_id=new_receipt_id(now, os.urandom(10)),
        issued_at=timestamp(now),
        tenant=f"tenant-{number % 7}",
        request_id=os.urandom(16).hex(),
        base_cid=cid(b"base"),
        tokenizer_cid=cid(b"tokenizer"),
        profile_cid=cid(b"profile"),
        halt_epoch=0,
        sampling=Sampling(temperature=0.7, seed=number),
        prompt=PromptPart(PROMPT_TOKENS, commit(PROMPT_DOMAIN, content.prompt_salt, content.prompt_token_ids)),
        output=OutputPart(
            tokens=OUTPUT_TOKENS,
            commitment=commit(OUTPUT_DOMAIN, content.output_salt, content.output_token_ids),
            finish_reason="length",
            stream_digest=stream,
            min_margin=0.03125,
        ),
        spec_decode=SpecDecode(
            method="lookahead",
            requested_method="auto",
            tokens_proposed=120,
            tokens_accepted=90,
            target_passes=38,
            acceptance_rate=0.75,
            mean_acceptance_length=OUTPUT_TOKENS / 38,
        ),
    )
