"""A receipt file is read strictly and commits to all that it holds; a constraint is bound to receipt and content."""

import json
from typing import Any

import pytest

from ledger.bundle.layout import ContentLine
from ledger.bundle.receipt_file import ReceiptFile
from ledger.documents.receipt import Receipt, StructuredOutputsPart
from ledger.documents.signed_document import sign_document
from ledger.encoding.canonical import canonical
from ledger.errors import FormatError
from tests.mutations import replace
from tests.unit.client.test_answer_check import CONTENT, TEXT, signed
from tests.unit.ledger.builders import KEYS, content, halt, receipt


def file(**changes: Any) -> ReceiptFile:
    envelope = sign_document(signed(), KEYS["receipts"])
    return replace(ReceiptFile(envelope, CONTENT, "a prompt", TEXT), **changes)


def test_it_reads_back_as_itself() -> None:
    for each in (file(), file(sent=None, text=None), file(text="")):
        assert ReceiptFile.from_bytes(each.to_bytes()) == each
    assert file().receipt() == signed()
    assert file(sent=None, text=None).receipt() == signed()


@pytest.mark.parametrize(
    "lie",
    [
        {"sent": "another prompt"},
        {"sent": ({"role": "user", "content": "a prompt"},)},
        {"text": "another text"},
        {"content": replace(CONTENT, output_token_ids=(7, 9))},
        {"content": replace(CONTENT, prompt_salt=b"x" * 32)},
        {"envelope": sign_document(halt(3), KEYS["auditor"])},
    ],
)
def test_what_the_receipt_does_not_commit_to_is_refused(lie: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        file(**lie).receipt()


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("type", "kolm.receipt-file.v2"),
        ("envelope", "{}"),
        ("envelope", 3),
        ("content", None),
        ("content", {}),
        ("sent", 3),
        ("sent", ["x"]),
        ("sent", [{"role": "user"}]),
        ("sent", [{"role": "user", "content": "x", "more": 1}]),
        ("text", 3),
        ("proof", "c2sp.org/tlog-proof@v1"),
        ("unknown", 1),
    ],
)
def test_other_forms_are_refused_with_their_field(member: str, value: Any) -> None:
    document = json.loads(file().to_bytes())
    with pytest.raises(FormatError):
        ReceiptFile.from_bytes(canonical(document | {member: value}))


def test_bytes_that_are_no_file_are_refused() -> None:
    whole = file().to_bytes()
    for junk in (b"", b"[]", b"\xff", whole[:-1], whole + b" "):
        with pytest.raises(FormatError):
            ReceiptFile.from_bytes(junk)


KEPT = replace(content(0), structured_outputs='{"type": "object"}')
PART = StructuredOutputsPart.of("json", '{"type": "object"}', KEPT.prompt_salt, "llguidance/1.9.1")
CONSTRAINED = replace(receipt(0), sampling=replace(receipt(0).sampling, structured_outputs=PART))


def test_a_receipt_with_a_constraint_reads_back_and_one_without_is_as_before() -> None:
    assert Receipt.from_document(CONSTRAINED.to_document()) == CONSTRAINED
    assert "structured_outputs" not in receipt(0).to_document()["sampling"]
    assert ContentLine.from_bytes(ContentLine.of(3, KEPT).to_bytes()).content == KEPT
    assert b"structured_outputs" not in ContentLine.of(3, content(0)).to_bytes()


def test_content_opens_the_commitment_or_is_refused() -> None:
    KEPT.check_against(CONSTRAINED)
    content(0).check_against(receipt(0))
    for kept, document in (
        (replace(KEPT, structured_outputs='{"type": "array"}'), CONSTRAINED),
        (content(0), CONSTRAINED),
        (KEPT, receipt(0)),
    ):
        with pytest.raises(FormatError) as caught:
            kept.check_against(document)
        assert caught.value.field == "content.structured_outputs"


@pytest.mark.parametrize("change", [{"kind": "JSON"}, {"commitment": "sha256:1"}, {"engine": "x" * 70}, {"more": 1}])
def test_a_part_that_is_not_one_is_refused(change: dict[str, object]) -> None:
    document = CONSTRAINED.to_document()
    document["sampling"]["structured_outputs"] |= change
    with pytest.raises(FormatError, match=f"sampling.structured_outputs.{next(iter(change))}"):
        Receipt.from_document(document)
