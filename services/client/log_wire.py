"""Converts messages to the values of `services.client.log`, and content to messages."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message as ProtoMessage
from google.protobuf.timestamp_pb2 import Timestamp

from kolm.ledger.v1 import documents_pb2, ledger_pb2
from services.client import log as values
from services.client.errors import FieldViolation, Internal, InvalidArgument, KolmError, decode_status

if TYPE_CHECKING:
    from ledger.documents.content import Content


def content_message(content: Content) -> documents_pb2.Content:
    return documents_pb2.Content(
        prompt_salt=content.prompt_salt,
        prompt_token_ids=content.prompt_token_ids,
        output_salt=content.output_salt,
        output_token_ids=content.output_token_ids,
        structured_outputs=content.structured_outputs,
    )


def new_entry(envelope: bytes, content: Content | None) -> ledger_pb2.NewEntry:
    return ledger_pb2.NewEntry(envelope=envelope, content=None if content is None else content_message(content))


def entry_result(message: ledger_pb2.EntryResult) -> values.Appended | KolmError:
    """Raises Internal for a result that this client does not know."""
    match message.WhichOneof("result"):
        case "appended":
            return appended(message.appended)
        case "error":
            return decode_status(message.error)
    raise Internal("the stream holds a result that this client does not know; update the client")


def appended(message: ledger_pb2.AppendEntryResponse) -> values.Appended:
    return values.Appended(
        index=message.index,
        entry_hash=message.entry_hash,
        previous_hash=message.previous_hash,
        checkpoint=message.checkpoint,
        inclusion_proof=_inclusion_proof(message.inclusion_proof),
        halt_epoch=message.halt_epoch,
    )


def entry(message: documents_pb2.Entry) -> values.LogEntry:
    kind = _name(documents_pb2.EntryKind, message.kind).removeprefix("ENTRY_KIND_").lower()
    return values.LogEntry(message.index, message.entry, message.leaf_hash, message.envelope, kind)


def proven_leaf(message: ledger_pb2.GetEntryResponse) -> values.LogEntry:
    """`entry` with its proof, where the server sends one."""
    return replace(entry(message.entry), checkpoint=message.checkpoint, inclusion_proof=_proof_in(message))


def receipt(message: documents_pb2.Receipt) -> values.ReceiptEntry:
    return values.ReceiptEntry(
        receipt_id=message.receipt_id,
        index=message.index,
        envelope=message.envelope,
        tenant=message.tenant,
        request_id=message.request_id,
        base_cid=message.base_cid,
        method=message.method,
        issued_at=_moment(message.issue_time),
        outcome=_outcome(message.outcome),
        head_cid=_optional(message, "head_cid"),
        adapter_cid=_optional(message, "adapter_cid"),
        profile_cid=message.profile_cid,
        profile_proven=_optional(message, "profile_proven"),
        previous_hash=message.previous_hash,
    )


def receipts_request(query: values.ReceiptQuery, page_size: int, *, complete: bool) -> ledger_pb2.ListReceiptsRequest:
    """Raises InvalidArgument for a word other than an outcome."""
    return ledger_pb2.ListReceiptsRequest(
        tenant=query.tenant,
        method=query.method,
        base_cid=query.base_cid,
        head_cid=query.head_cid,
        adapter_cid=query.adapter_cid,
        profile_cid=query.profile_cid,
        request_id=query.request_id,
        outcome=outcome_number(query.outcome),
        start_time=_stamp(query.start_time),
        end_time=_stamp(query.end_time),
        min_index=query.min_index,
        max_index=query.max_index,
        commitment=query.commitment,
        page_size=page_size,
        prove_complete=complete,
    )


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
    return values.SignedCheckpoint(
        note=message.checkpoint,
        tree_size=message.tree_size,
        root_hash=message.root_hash,
        cosignatures=tuple(values.Cosignature(each.witness, _moment(each.sign_time)) for each in message.cosignatures),
        witnessed=message.witnessed,
    )


def verdict_page(message: ledger_pb2.ListVerdictsResponse) -> values.VerdictPage:
    return values.VerdictPage(tuple(map(verdict, message.verdicts)), message.next_page_token)


def receipt_details(message: ledger_pb2.GetReceiptResponse) -> values.ReceiptDetails:
    return values.ReceiptDetails(
        receipt=receipt(message.receipt),
        content=_content(message.content) if message.HasField("content") else None,
        verdicts=tuple(verdict(each) for each in message.verdicts),
        content_state=_content_state(message.content_state),
        erasure_index=message.erasure_index if message.HasField("erasure_index") else None,
        checkpoint=message.checkpoint,
        inclusion_proof=_proof_in(message),
    )


def _content_state(state: ledger_pb2.ContentState.ValueType) -> str:
    name = _name(ledger_pb2.ContentState, state).removeprefix("CONTENT_STATE_")
    return "" if name == "UNSPECIFIED" else name


def verdict(message: documents_pb2.Verdict) -> values.Verdict:
    return values.Verdict(
        index=message.index,
        receipt_id=message.receipt_id,
        receipt_index=message.receipt_index,
        outcome=_outcome(message.outcome) or "",
        tokens_compared=message.tokens_compared,
        deviation=_deviation(message.deviation) if message.HasField("deviation") else None,
        reason=_optional(message, "reason"),
        replayed_at=_moment(message.replay_time),
        envelope=message.envelope,
        verification=_optional(message, "verification"),
        replayed_by=_optional(message, "replayed_by"),
    )


def proven_entry(message: ledger_pb2.GetInclusionProofResponse) -> values.ProvenEntry:
    return values.ProvenEntry(
        _inclusion_proof(message.inclusion_proof), message.leaf_hash, message.root_hash, message.checkpoint
    )


def consistency_proof(message: ledger_pb2.GetConsistencyProofResponse) -> values.ConsistencyProof:
    proof = message.consistency_proof
    return values.ConsistencyProof(
        first_tree_size=proof.first_tree_size,
        second_tree_size=proof.second_tree_size,
        hashes=tuple(proof.hashes),
        first_root_hash=message.first_root_hash,
        second_root_hash=message.second_root_hash,
        checkpoint=message.checkpoint,
    )


def halt_state(message: ledger_pb2.GetHaltStateResponse) -> values.HaltState:
    return values.HaltState(message.epoch, tuple(_halt(each) for each in message.halts), message.tree_size)


def outcome_number(outcome: str | None) -> documents_pb2.Outcome.ValueType:
    """Raises InvalidArgument for a word other than an outcome."""
    try:
        return documents_pb2.Outcome.Value("OUTCOME_" + (outcome or "UNSPECIFIED"))
    except ValueError:
        problem = f"expected EXACT, DEVIATION or UNREPLAYABLE, got {outcome!r}"
        raise InvalidArgument(problem, violations=(FieldViolation("outcome", problem),)) from None


def _stamp(time: datetime | None) -> Timestamp | None:
    if time is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


def _halt(message: documents_pb2.Halt) -> values.Halt:
    scope = values.Scope(message.scope.base_cid, message.scope.method, _optional(message.scope, "head_cid"))
    return values.Halt(scope, message.halt_index, message.verdict_index, message.reason)


def _content(message: documents_pb2.Content) -> Content:
    from ledger.documents.content import Content

    return Content(
        prompt_salt=message.prompt_salt,
        prompt_token_ids=tuple(message.prompt_token_ids),
        output_salt=message.output_salt,
        output_token_ids=tuple(message.output_token_ids),
        structured_outputs=_optional(message, "structured_outputs"),
    )


def _deviation(message: documents_pb2.Deviation) -> values.Deviation:
    return values.Deviation(
        position=message.position,
        expected_token=_optional(message, "expected_token"),
        actual_token=_optional(message, "actual_token"),
        expected_margin=_optional(message, "expected_margin"),
        actual_margin=_optional(message, "actual_margin"),
    )


def cose_receipt(message: ledger_pb2.GetCoseReceiptResponse) -> values.CoseReceipt:
    proof = _inclusion_proof(message.inclusion_proof)
    return values.CoseReceipt(message.cose_receipt, message.entry, message.checkpoint, proof)


def _proof_in(message: ledger_pb2.GetEntryResponse | ledger_pb2.GetReceiptResponse) -> values.InclusionProof | None:
    return _inclusion_proof(message.inclusion_proof) if message.HasField("inclusion_proof") else None


def _inclusion_proof(message: documents_pb2.InclusionProof) -> values.InclusionProof:
    return values.InclusionProof(message.index, message.tree_size, tuple(message.hashes))


def _outcome(value: documents_pb2.Outcome.ValueType) -> str | None:
    name = _name(documents_pb2.Outcome, value).removeprefix("OUTCOME_")
    return None if name == "UNSPECIFIED" else name


def _optional(message: ProtoMessage, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


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
