"""A constraint in the receipt and in its content: bound to each other, absent together."""

import pytest

from ledger.bundle.layout import ContentLine
from ledger.documents.receipt import Receipt, StructuredOutputsPart
from ledger.errors import FormatError
from tests.mutations import replace
from tests.unit.ledger.builders import content, receipt

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
