"""Conversion of the ledger's values to messages."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.timestamp_pb2 import Timestamp

from kolm.ledger.v1 import documents_pb2 as pb
from kolm.ledger.v1 import ledger_pb2
from ledger.documents.halt import OpenHalt
from ledger.documents.signed_document import KINDS, payload_type, read_document
from ledger.errors import ChainError, FormatError
from ledger.log.reader import Inclusion, StoredReceipt
from ledger.log.store import VerdictRow
from ledger.log.writer import Appended
from ledger.tree.entry import Entry
from ledger.witness.freshness import LAST_SECOND
from services.ledger.checkpoints import CosignedCheckpoint


def entry_message(index: int, data: bytes) -> pb.Entry:
    """The message of the leaf at `index`. Raises ChainError if its bytes are not an entry."""
    try:
        read_document(Entry.from_bytes(data).envelope)
    except FormatError as error:
        raise ChainError(index, f"is damaged: {error}") from error
    return pb.Entry(entry=data)


def kind_names(kinds: Iterable[pb.EntryKind.ValueType]) -> tuple[str, ...]:
    """The names in `signed_document.KINDS` of kinds that may be requested. Raises ValueError for the others."""
    names = tuple(pb.EntryKind.Name(kind).removeprefix("ENTRY_KIND_").lower() for kind in kinds)
    if not set(names) <= KINDS.keys() - {"receipt", "verdict"}:
        raise ValueError("expected kinds other than receipts and verdicts, which have separate lists")
    return names


def appended_message(appended: Appended) -> ledger_pb2.AppendEntryResponse:
    """The index of an entry, and its proof."""
    return ledger_pb2.AppendEntryResponse(
        index=appended.index,
        checkpoint=appended.checkpoint,
        inclusion_proof=pb.InclusionProof(
            index=appended.index, tree_size=appended.tree_size, hashes=appended.inclusion_proof
        ),
        halt_epoch=appended.halt_epoch,
    )


def inclusion_message(index: int, inclusion: Inclusion) -> pb.InclusionProof:
    """The proof of entry `index` under the head of `inclusion`."""
    return pb.InclusionProof(index=index, tree_size=inclusion.head.size, hashes=inclusion.hashes)


def receipt_message(index: int, data: bytes, outcome: str | None) -> pb.Receipt:
    """The receipt of the leaf at `index`. Raises ChainError if the leaf holds another document."""
    entry = _entry(index, data, "receipt")
    return pb.Receipt(
        index=entry.index,
        envelope=entry.envelope.to_bytes(),
        outcome=pb.OUTCOME_UNSPECIFIED if outcome is None else pb.Outcome.Value(f"OUTCOME_{outcome}"),
    )


def _entry(index: int, data: bytes, kind: str) -> Entry:
    try:
        entry = Entry.from_bytes(data)
    except FormatError as error:
        raise ChainError(index, f"is damaged: {error}") from error
    if entry.envelope.payload_type != payload_type(kind):
        raise ChainError(index, f"is indexed as a {kind} and is not one")
    return entry


def content_state(stored: StoredReceipt) -> ledger_pb2.ContentState.ValueType:
    """Whether the content of a receipt is kept, erased or was never given."""
    if stored.has_content:
        return ledger_pb2.CONTENT_STATE_KEPT
    erased = stored.erased_by is not None
    return ledger_pb2.CONTENT_STATE_ERASED if erased else ledger_pb2.CONTENT_STATE_NEVER_GIVEN


def verdict_message(row: VerdictRow) -> pb.Verdict:
    """A listed verdict. Raises ChainError if the leaf holds another document."""
    return pb.Verdict(index=row.index, envelope=_entry(row.index, row.entry, "verdict").envelope.to_bytes())


def checkpoint_message(found: CosignedCheckpoint) -> ledger_pb2.GetCheckpointResponse:
    """A tree head with its cosignatures."""
    return ledger_pb2.GetCheckpointResponse(
        checkpoint=found.note,
        tree_size=found.checkpoint.size,
        root_hash=found.checkpoint.root,
        cosignatures=[
            pb.Cosignature(witness=name, sign_time=Timestamp(seconds=min(seconds, LAST_SECOND)))
            for name, seconds in found.cosigned.items()
        ],
        witnessed=found.witnessed,
    )


def halt_message(halt: OpenHalt) -> pb.Halt:
    """An open halt."""
    return pb.Halt(
        scope=pb.Scope(**halt.scope.to_document()),
        halt_index=halt.halt_index,
        verdict_index=halt.halt.verdict_index,
        reason=halt.halt.reason,
    )


def outcome_name(outcome: pb.Outcome.ValueType) -> str | None:
    """The outcome in a verdict's document; None for OUTCOME_UNSPECIFIED. Raises ValueError for an unknown number."""
    name = pb.Outcome.Name(outcome).removeprefix("OUTCOME_")
    return None if name == "UNSPECIFIED" else name
