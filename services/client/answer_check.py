"""Holds a receipt that came with an answer against what was asked and what came: before the caller sees either."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import Any

from ledger.documents.content import check_opened, check_sent
from ledger.documents.receipt import Receipt as ReceiptDocument
from ledger.documents.signed_document import read_document
from ledger.errors import LedgerError
from ledger.keys.envelope import Envelope
from services.client.completion import Receipt, Resolved
from services.client.errors import ReceiptMismatch
from services.client.request import Request
from services.client.spec_decode import SpecDecodeConfig

_CLAMPED = {"max_tokens", "min_tokens", "top_k", "stop", "stop_token_ids", "logit_bias", "logprobs"}
"""Of sampling: what a server may lower, order anew, or keep out of receipts; the tokens of a replay depend on the rest
just as on these, and a replay takes them from the receipt."""
_RELATIVE = 1e-6  # numbers go over the wire in single precision


def check_receipt(
    receipt: Receipt, request: Request, spec_decode: SpecDecodeConfig | None, resolved: Resolved, choice: int,
    finish_reason: str,
) -> None:  # fmt: skip
    """Raises ReceiptMismatch naming what differs. Signatures are for `Receipt.verify`, which needs keys to trust."""
    try:
        document = read_document(Envelope.from_bytes(receipt.envelope))
        if not isinstance(document, ReceiptDocument):
            raise ReceiptMismatch("the server sent another document in a receipt's place")
        check_opened(document, receipt.content, receipt.text)
        if request.prompt is not None:
            check_sent(document, receipt.content.prompt_salt, request.prompt)
        if request.messages is not None:
            check_sent(document, receipt.content.prompt_salt, [asdict(turn) for turn in request.messages])
    except LedgerError as error:
        raise ReceiptMismatch(f"the receipt does not fit the answer: {error}") from error
    expected = _asked(request, spec_decode, receipt, resolved) | {
        "sampling.choice": choice, "output.finish_reason": finish_reason,
    }  # fmt: skip
    written = _flat(document.to_document())
    for name, value in expected.items():
        if not _same(value, written.get(name)):
            raise ReceiptMismatch(f"{name}: asked for or answered {value!r}, the receipt says {written.get(name)!r}")


def _asked(
    request: Request, spec_decode: SpecDecodeConfig | None, receipt: Receipt, resolved: Resolved
) -> dict[str, Any]:
    """Members of the receipt that the request or the answer fixes."""
    given: dict[str, Any] = {
        "tenant": request.tenant or None,
        "nonce": request.nonce or None,
        "request_id": request.request_id or resolved.request_id,
        "base_cid": request.model if request.model and request.model.startswith("cidv1:") else resolved.base_cid,
        "receipt_id": receipt.receipt_id,
        "tokenizer_cid": resolved.tokenizer_cid,
        "profile_cid": resolved.profile_cid,
        "spec_decode.requested_method": (spec_decode.method if spec_decode else None) or "auto",
        "spec_decode.method": resolved.method,
    }
    if request.token_ids is not None:
        given["prompt.tokens"] = len(request.token_ids)
        if tuple(request.token_ids) != receipt.content.prompt_token_ids:
            raise ReceiptMismatch("token_ids: the receipt is about another prompt")
    for each in fields(request.sampling):
        if each.name not in _CLAMPED:
            given[f"sampling.{each.name}"] = getattr(request.sampling, each.name)
    expected = {name: value for name, value in given.items() if value is not None}
    return expected | {"adapter_cid": resolved.adapter_cid}


def _flat(document: dict[str, Any]) -> dict[str, Any]:
    """Members of nested objects by their dotted paths."""
    parts = {f"{name}.{inner}": value for name, part in document.items() if isinstance(part, dict)
             for inner, value in part.items()}  # fmt: skip
    return document | parts


def _same(value: object, written: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value == written
    if isinstance(written, str):  # a seed beyond 2^53
        return str(value) == written
    return isinstance(written, int | float) and math.isclose(value, written, rel_tol=_RELATIVE)
