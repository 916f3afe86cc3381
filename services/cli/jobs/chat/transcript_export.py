"""A conversation with the receipts of its answers, as a bundle for `kolm verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ledger.bundle.transcript import Transcript, Turn
from services.cli.failures.exits import UsageError
from services.cli.jobs.chat.conversation import Conversation
from services.cli.jobs.chat.receipts import with_receipt
from services.cli.jobs.ledger.bundle_export import BundleRequest, check_new, export_bundle_to
from services.client import LedgerClient
from services.client.errors import PermissionDenied, Unauthenticated

_NO_CONTENT = (
    "what the receipts commit to, which the ledger gives to auditors and to the tenant's own token: without it nobody "
    "can hold the texts against the receipts"
)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where receipts, their content and the manifests of heads come from."""

    ledger: str
    registry: str


def save(conversation: Conversation, path: Path, sources: Sources) -> tuple[str, ...]:
    """Write a bundle with every turn; returns, in words, what it lacks.

    Raises UsageError for a conversation without turns and a path that is taken, KolmError, Failed.
    """
    if not conversation.turns:
        raise UsageError("nothing was said yet that could be saved")
    check_new(path)
    with LedgerClient.connect(sources.ledger) as ledger:
        conversation.turns[:] = [with_receipt(ledger, turn) for turn in conversation.turns]
    turns = tuple(
        Turn(turn.question, turn.answer, turn.receipt_id or "", turn.remembered, turn.interrupted)
        for turn in conversation.turns
    )
    receipts = tuple(turn.receipt_id for turn in turns)
    transcript = Transcript(conversation.system, turns).to_bytes()
    wanted = BundleRequest(receipts, content=True, transcript=transcript)
    try:
        return export_bundle_to(path, sources.ledger, sources.registry, wanted)
    except (PermissionDenied, Unauthenticated):
        wanted = BundleRequest(receipts, transcript=transcript)
        return (_NO_CONTENT, *export_bundle_to(path, sources.ledger, sources.registry, wanted))
