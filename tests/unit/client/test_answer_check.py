"""A receipt that is not about the request and the answer it came with is an error, whatever differs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger.documents.content import Content
from ledger.documents.promise import sign_promise
from ledger.documents.receipt import OutputPart, PromptPart, StructuredOutputsPart
from ledger.documents.receipt import Receipt as Document
from ledger.documents.signed_document import sign_document
from ledger.encoding.canonical import canonical
from ledger.encoding.commitment import (
    MESSAGES_DOMAIN,
    OUTPUT_DOMAIN,
    OUTPUT_TEXT_DOMAIN,
    PROMPT_DOMAIN,
    PROMPT_TEXT_DOMAIN,
    commit,
    commit_text,
)
from ledger.errors import FormatError, KeyFileError, SignatureError
from ledger.keys.trusted_keys import TrustedKeys
from services.client.errors import ReceiptMismatch
from services.client.generation.answer_check import check_promise, check_receipt
from services.client.generation.completion import Receipt, Resolved
from services.client.generation.request import Message, Request, SamplingParams, SpecDecodeConfig, StructuredOutputs
from tests.mutations import replace
from tests.unit.ledger.builders import KEYS, STRANGER, TRUSTED, halt, promise_of, receipt

PROMPT_SALT, OUTPUT_SALT = b"p" * 32, b"o" * 32
CONTENT = Content(PROMPT_SALT, (1, 2, 3), OUTPUT_SALT, (7, 8))
TEXT = "an answer"
REQUEST = Request(
    prompt="a prompt", nonce="mine", tenant="acme", request_id="request-0",
    sampling=SamplingParams(temperature=0.7, seed=7, n=1),
)  # fmt: skip
CONFIG = SpecDecodeConfig(method="auto")


def signed(**changes: Any) -> Document:
    plain = receipt(0)
    fields: dict[str, Any] = {
        "nonce": "mine",
        "prompt": PromptPart(
            3, commit(PROMPT_DOMAIN, PROMPT_SALT, (1, 2, 3)), commit_text(PROMPT_TEXT_DOMAIN, PROMPT_SALT, "a prompt")
        ),
        "output": OutputPart(
            tokens=2,
            commitment=commit(OUTPUT_DOMAIN, OUTPUT_SALT, (7, 8)),
            finish_reason="stop",
            stream_digest=plain.output.stream_digest,
            text_commitment=commit_text(OUTPUT_TEXT_DOMAIN, OUTPUT_SALT, TEXT),
        ),
    }
    return replace(plain, **(fields | changes))


def sent(document: Document, content: Content = CONTENT, text: str = TEXT) -> Receipt:
    envelope = sign_document(document, KEYS["receipts"]).to_bytes()
    return Receipt(envelope, document.receipt_id, 7, False, content, text)


def resolved(document: Document) -> Resolved:
    return Resolved(
        request_id=document.request_id, base_cid=document.base_cid, tokenizer_cid=document.tokenizer_cid,
        profile_cid=document.profile_cid, profile_proven=None, adapter_cid=document.adapter_cid, sampling={},
        requested_method="auto", method="lookahead", fallback_reason=None, head_cid=None, k=None, halt_epoch=0,
        prompt_tokens=3, prompt_token_ids=(1, 2, 3), prompt_salt=PROMPT_SALT,
    )  # fmt: skip


def check(came: Receipt, request: Request = REQUEST, config: SpecDecodeConfig | None = CONFIG, **asked: Any) -> None:
    arguments: dict[str, Any] = {"choice": 0, "finish_reason": "stop"}
    check_receipt(came, request, config, resolved(signed()), **(arguments | asked))


def test_a_receipt_of_this_answer_passes_and_opens() -> None:
    check(sent(signed()))
    check(sent(signed()), replace(REQUEST, nonce="", tenant="", request_id=""), None)
    assert sent(signed()).verify(TRUSTED) == signed()


def test_trusted_keys_are_keys_or_the_folder_that_they_lie_in(tmp_path: Path) -> None:
    KEYS["receipts"].publish(tmp_path)
    for trusted in (TRUSTED, TrustedKeys.load(tmp_path), tmp_path, str(tmp_path)):
        assert sent(signed()).verify(trusted) == signed()
    with pytest.raises(KeyFileError):
        sent(signed()).verify(tmp_path / "typo")


def test_a_conversation_and_token_ids() -> None:
    turns = [{"content": "hello", "role": "user"}]
    text = canonical(turns).decode()
    part = replace(signed().prompt, text_commitment=commit_text(MESSAGES_DOMAIN, PROMPT_SALT, text))
    chat = replace(REQUEST, prompt=None, messages=[Message("user", "hello")])
    check(sent(signed(prompt=part)), chat)
    with pytest.raises(ReceiptMismatch, match="prompt: "):
        check(sent(signed(prompt=part)), replace(chat, messages=[Message("user", "goodbye")]))
    check(sent(signed(prompt=replace(part, text_commitment=None))), replace(REQUEST, prompt=None, token_ids=[1, 2, 3]))
    with pytest.raises(ReceiptMismatch, match="token_ids"):
        check(sent(signed()), replace(REQUEST, prompt=None, token_ids=[1, 2, 4]))


LIES: dict[str, Callable[[], None]] = {
    "another prompt": lambda: check(sent(signed()), replace(REQUEST, prompt="another")),
    "other prompt ids": lambda: check(sent(signed(), replace(CONTENT, prompt_token_ids=(1, 2, 4)))),
    "another salt": lambda: check(sent(signed(), replace(CONTENT, prompt_salt=b"x" * 32))),
    "a short salt": lambda: check(sent(signed(), replace(CONTENT, output_salt=b""))),
    "other output ids": lambda: check(sent(signed(), replace(CONTENT, output_token_ids=(7, 9)))),
    "another text": lambda: check(sent(signed(), text="another")),
    "no text commitment": lambda: check(sent(signed(output=replace(signed().output, text_commitment=None)))),
    "another nonce": lambda: check(sent(signed(nonce="another"))),
    "no nonce": lambda: check(sent(signed(nonce=None))),
    "another tenant": lambda: check(sent(signed(tenant="other"))),
    "another seed": lambda: check(sent(signed(sampling=replace(signed().sampling, seed=8)))),
    "another temperature": lambda: check(sent(signed(sampling=replace(signed().sampling, temperature=0.0)))),
    "another choice": lambda: check(sent(signed()), choice=1),
    "another end": lambda: check(sent(signed()), finish_reason="length"),
    "another base": lambda: check(sent(signed(base_cid=signed().tokenizer_cid))),
    "an adapter": lambda: check(sent(signed(adapter_cid=signed().tokenizer_cid))),
    "another method": lambda: check(sent(signed()), config=SpecDecodeConfig(method="off")),
    "another id": lambda: check(replace(sent(signed()), receipt_id=receipt(1).receipt_id)),
    "another document": lambda: check(
        replace(sent(signed()), envelope=sign_document(halt(3), KEYS["auditor"]).to_bytes())
    ),
    "junk": lambda: check(replace(sent(signed()), envelope=b"{}")),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
def test_lies(lie: Callable[[], None]) -> None:
    with pytest.raises(ReceiptMismatch):
        lie()


def promise(**changes: Any) -> bytes:
    return sign_promise(promise_of(signed(), **changes), KEYS["receipts"]).to_bytes()


def check_promised(data: bytes, request: Request = REQUEST) -> None:
    check_promise(data, request, resolved(signed()))


def test_a_promise_of_this_request_passes() -> None:
    check_promised(promise())
    check_promised(promise(), replace(REQUEST, nonce="", tenant="", request_id="", sampling=SamplingParams()))
    check_promised(promise(choices=3), replace(REQUEST, sampling=SamplingParams(n=3)))


FALSE_PROMISES: dict[str, Callable[[], None]] = {
    "nonce": lambda: check_promised(promise(nonce=None)),
    "tenant": lambda: check_promised(promise(tenant="other")),
    "request_id": lambda: check_promised(promise(request_id="request-1")),
    "base_cid": lambda: check_promised(promise(base_cid=signed().tokenizer_cid)),
    "profile_cid": lambda: check_promised(promise(profile_cid=signed().tokenizer_cid)),
    "choices": lambda: check_promised(promise(choices=1), replace(REQUEST, sampling=SamplingParams(n=2))),
    "prompt_token_ids": lambda: check_promised(promise(prompt=receipt(1).prompt)),
    "prompt: is not what the promise": lambda: check_promised(promise(), replace(REQUEST, prompt="another")),
    "token_ids": lambda: check_promised(promise(), replace(REQUEST, prompt=None, token_ids=[1, 2, 4])),
    "payloadType": lambda: check_promised(sign_document(signed(), KEYS["receipts"]).to_bytes()),
    "the promise does not fit": lambda: check_promised(b"{}"),
}


@pytest.mark.parametrize("names", FALSE_PROMISES)
def test_false_promises(names: str) -> None:
    with pytest.raises(ReceiptMismatch, match=names):
        FALSE_PROMISES[names]()


def test_the_signature_counts_with_keys_to_trust() -> None:
    forged = replace(sent(signed()), envelope=sign_document(signed(), STRANGER).to_bytes())
    check(forged)
    with pytest.raises(SignatureError):
        forged.verify(TRUSTED)
    with pytest.raises(SignatureError):
        sent(signed()).verify(TrustedKeys({}))
    with pytest.raises(FormatError):
        replace(sent(signed()), text="another").verify(TRUSTED)


def test_a_receipt_about_another_constraint_is_refused() -> None:
    schema, other = '{"type": "object"}', '{"type": "array"}'
    part = StructuredOutputsPart.of("json", schema, PROMPT_SALT, "llguidance/1.9.1")
    document = signed()
    document = replace(document, sampling=replace(document.sampling, structured_outputs=part))
    kept = replace(CONTENT, structured_outputs=schema)

    def asking(constraint: StructuredOutputs | None) -> None:
        asked = replace(REQUEST, sampling=replace(REQUEST.params, structured_outputs=constraint))
        check(sent(document, kept), asked)

    asking(StructuredOutputs(json=schema))
    for constraint in (None, StructuredOutputs(json=other), StructuredOutputs(regex=schema)):
        with pytest.raises(ReceiptMismatch):
            asking(constraint)
    with pytest.raises(ReceiptMismatch):
        check(sent(signed()), replace(REQUEST, sampling=replace(REQUEST.params, structured_outputs={"json": "{}"})))
