"""Checks of a promise and of receipts against request and answer, before the caller gets them."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from ledger.documents.content import Content, check_opened, check_prompt, check_sent
from ledger.documents.promise import Promise, read_promise
from ledger.documents.receipt import Receipt as ReceiptDocument
from ledger.documents.signed_document import read_document
from ledger.errors import LedgerError
from ledger.keys.envelope import Envelope
from services.client.errors import ReceiptMismatch
from services.client.generation.completion import Receipt, Resolved
from services.client.generation.request import Request, SpecDecodeConfig

_CLAMPED = {"max_tokens", "min_tokens", "top_k", "stop", "stop_token_ids", "logit_bias", "logprobs"}
"""Members that a server may lower, reorder, or keep out of receipts. A replay takes them from the receipt, like the
rest of sampling.
"""
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
        _check_constraint(document, receipt.content, request, resolved)
        _check_thoughts(document, resolved)
        _check_prompt(document, request, resolved)
    except LedgerError as error:
        raise ReceiptMismatch(f"the receipt does not fit the answer: {error}") from error
    expected = _asked(request, spec_decode, receipt, resolved) | {
        "sampling.choice": choice, "output.finish_reason": finish_reason,
    }  # fmt: skip
    _compare(expected, _flat(document.to_document()), "receipt")


def check_promise(data: bytes, request: Request, resolved: Resolved) -> None:
    """Raises ReceiptMismatch naming what differs. Signatures are for `open_promise`, which needs keys to trust."""
    try:
        promise = read_promise(data)
        _check_prompt(promise, request, resolved)
    except LedgerError as error:
        raise ReceiptMismatch(f"the promise does not fit the request: {error}") from error
    _compare(_named(request, resolved) | {"choices": request.params.n or 1}, promise.to_document(), "promise")


def _check_prompt(document: ReceiptDocument | Promise, request: Request, resolved: Resolved) -> None:
    """Raises ReceiptMismatch, FormatError unless the document's prompt is the request's."""
    check_prompt(document, resolved.prompt_salt, resolved.prompt_token_ids)
    if request.token_ids is not None and tuple(request.token_ids) != resolved.prompt_token_ids:
        raise ReceiptMismatch("token_ids: the answer is about another prompt")
    if (sent := request.sent) is not None:
        check_sent(document, resolved.prompt_salt, sent)


def _check_constraint(document: ReceiptDocument, content: Content, request: Request, resolved: Resolved) -> None:
    """Raises ReceiptMismatch unless the receipt's constraint, which `content` opens, is the request's.

    With tools, the constraint is `resolved`'s, which the server makes from their schemas, the model's syntax and the
    request's constraint.
    """
    asked, stated = request.params.constraint, document.sampling.structured_outputs
    if resolved.tool_calls is not None:
        asked = resolved.sampling.get("structured_outputs")
    told = None if stated is None else (stated.kind, content.structured_outputs)
    if told != (None if asked is None else (asked.kind, asked.text)):
        raise ReceiptMismatch("structured_outputs: the receipt is about another constraint than was asked for")


def _check_thoughts(document: ReceiptDocument, resolved: Resolved) -> None:
    """Raises ReceiptMismatch if the thoughts in which no stop string counted are not those that the answer names."""
    stated, named = document.sampling.thoughts, resolved.thoughts
    told = None if named is None else (named.open, tuple(named.closes), named.begun)
    if stated is not None and (stated.open, stated.closes, stated.begun) != told:
        raise ReceiptMismatch(f"sampling.thoughts: the receipt has {stated}, the answer {named}")


def _named(request: Request, resolved: Resolved) -> dict[str, Any]:
    """Members that a promise and its receipts share."""
    given = {
        "tenant": request.tenant or None,
        "nonce": request.nonce or None,
        "request_id": request.request_id or resolved.request_id,
        "base_cid": request.model if request.model and request.model.startswith("cidv1:") else resolved.base_cid,
        "profile_cid": resolved.profile_cid,
    }
    return {name: value for name, value in given.items() if value is not None}


def _compare(expected: dict[str, Any], written: dict[str, Any], document: str) -> None:
    for name, value in expected.items():
        if not _same(value, written.get(name)):
            raise ReceiptMismatch(f"{name}: asked for or answered {value!r}, the {document} has {written.get(name)!r}")


def _with_ends_of_middles(request: Request, resolved: Resolved) -> list[int]:
    """The request's stop tokens, and those that end a middle, which the server adds.

    Raises ReceiptMismatch if any of the request's are missing.
    """
    asked, taken = list(dict.fromkeys(request.params.stop_token_ids)), list(resolved.sampling.get("stop_token_ids", ()))
    if taken[: len(asked)] != asked:
        raise ReceiptMismatch(f"stop_token_ids: asked for {asked}, the answer has {taken}")
    return taken


def _asked(
    request: Request, spec_decode: SpecDecodeConfig | None, receipt: Receipt, resolved: Resolved
) -> dict[str, Any]:
    """Members of the receipt that the request or the answer fixes."""
    given: dict[str, Any] = {
        "receipt_id": receipt.receipt_id,
        "tokenizer_cid": resolved.tokenizer_cid,
        "spec_decode.requested_method": (spec_decode.method if spec_decode else None) or "auto",
        "spec_decode.method": resolved.method,
    }
    for each in fields(request.params):
        if each.name not in _CLAMPED and each.name != "structured_outputs":
            given[f"sampling.{each.name}"] = getattr(request.params, each.name)
    if request.suffix:
        given["sampling.stop_token_ids"] = _with_ends_of_middles(request, resolved)
    expected = {name: value for name, value in given.items() if value is not None}
    return _named(request, resolved) | expected | {"adapter_cid": resolved.adapter_cid}


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
