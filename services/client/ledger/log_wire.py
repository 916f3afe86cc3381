"""Converts messages to the values of `services.client.ledger.log`, and content to messages."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from google.protobuf.timestamp_pb2 import Timestamp

from kolm.ledger.v1 import documents_pb2, ledger_pb2
from services.client.channel import optional, plain_value
from services.client.errors import FieldViolation, Internal, InvalidArgument
from services.client.ledger import log as values

if TYPE_CHECKING:
    from ledger.documents.content import Content
    from ledger.log.receipt_filter import ReceiptFilter


def content_message(content: Content) -> documents_pb2.Content:
    return documents_pb2.Content(
        prompt_salt=content.prompt_salt,
        prompt_token_ids=content.prompt_token_ids,
        output_salt=content.output_salt,
        output_token_ids=content.output_token_ids,
        structured_outputs=content.structured_outputs,
    )


def receipt(message: documents_pb2.Receipt) -> values.ReceiptEntry:
    return plain_value(values.ReceiptEntry, message, outcome=_outcome(message.outcome))


def receipts_request(narrow: ReceiptFilter, page_size: int, *, complete: bool) -> ledger_pb2.ListReceiptsRequest:
    """Raises InvalidArgument for a word other than an outcome."""
    named = asdict(narrow) | {
        "outcome": outcome_number(narrow.outcome),
        "start_time": _stamp(narrow.start_time),
        "end_time": _stamp(narrow.end_time),
    }
    return ledger_pb2.ListReceiptsRequest(**named, page_size=page_size, prove_complete=complete)


def receipt_page(message: ledger_pb2.ListReceiptsResponse) -> values.ReceiptPage:
    complete = message.complete_range if message.HasField("complete_range") else None
    return values.ReceiptPage(
        receipts=tuple(receipt(each) for each in message.receipts),
        checkpoint=message.checkpoint,
        tree_size=message.multi_proof.tree_size,
        hashes=tuple(message.multi_proof.hashes),
        start=None if complete is None else complete.start_index,
        end=None if complete is None else complete.end_index,
        others=() if complete is None else tuple(complete.other_entries),
    )


def signed_checkpoint(message: ledger_pb2.GetCheckpointResponse) -> values.SignedCheckpoint:
    signed = tuple(values.Cosignature(each.witness, _moment(each.sign_time)) for each in message.cosignatures)
    return plain_value(values.SignedCheckpoint, message, note=message.checkpoint, cosignatures=signed)


def receipt_details(message: ledger_pb2.GetReceiptResponse) -> values.ReceiptDetails:
    return plain_value(
        values.ReceiptDetails,
        message,
        receipt=receipt(message.receipt),
        content=content(message.content) if message.HasField("content") else None,
        content_state=_name(ledger_pb2.ContentState, message.content_state).removeprefix("CONTENT_STATE_"),
    )


def consistency_proof(message: ledger_pb2.GetConsistencyProofResponse) -> values.ConsistencyProof:
    proof = message.consistency_proof
    sizes = {"first_tree_size": proof.first_tree_size, "second_tree_size": proof.second_tree_size}
    return plain_value(values.ConsistencyProof, message, **sizes, hashes=tuple(proof.hashes))


def outcome_number(outcome: str | None) -> documents_pb2.Outcome.ValueType:
    """Raises InvalidArgument for a word other than an outcome."""
    try:
        return documents_pb2.Outcome.Value("OUTCOME_" + (outcome or "UNSPECIFIED"))
    except ValueError:
        from ledger.documents.audit import OUTCOMES

        problem = f"expected one of {', '.join(OUTCOMES)}, got {outcome!r}"
        raise InvalidArgument(f"outcome: {problem}", violations=(FieldViolation("outcome", problem),)) from None


def _stamp(time: datetime | None) -> Timestamp | None:
    if time is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


def content(message: documents_pb2.Content) -> Content:
    from ledger.documents.content import Content

    return Content(  # field by field: a ledger converts every entry so
        prompt_salt=message.prompt_salt,
        prompt_token_ids=tuple(message.prompt_token_ids[:]),  # a slice is twice as fast
        output_salt=message.output_salt,
        output_token_ids=tuple(message.output_token_ids[:]),
        structured_outputs=optional(message, "structured_outputs"),
    )


def _outcome(value: documents_pb2.Outcome.ValueType) -> str | None:
    name = _name(documents_pb2.Outcome, value).removeprefix("OUTCOME_")
    return None if name == "UNSPECIFIED" else name


def _name(enum: Any, value: int) -> str:
    try:
        return str(enum.Name(value))
    except ValueError:
        raise Internal(f"the server answered with a value that this client does not know ({value})") from None


def _moment(stamp: Timestamp) -> datetime:
    try:
        return stamp.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise Internal("the server answered with a time outside of the years 1 to 9999") from None
