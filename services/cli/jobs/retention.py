"""Sets and reads the retention policies of a log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ledger.documents.retention import Expiry, Retention, in_force
from ledger.documents.signed_document import open_document, sign_document
from ledger.encoding.timestamp import timestamp
from ledger.keys.envelope import Envelope
from ledger.keys.signer import Signer
from services.cli.jobs.trust import load_trusted
from services.client import LedgerClient
from services.client.ledger.verified import VerifiedLedger


@dataclass(frozen=True, slots=True)
class Policy:
    """A retention policy and its entry; `days` None is without limit, `tenant` None all without one of their own."""

    index: int
    tenant: str | None
    days: int | None
    issued_at: str


@dataclass(frozen=True, slots=True)
class RetentionState:
    """The policies in force, the general one first, and the newest expiry of each with its index."""

    policies: tuple[Policy, ...]
    expiries: tuple[tuple[int, Expiry], ...]


def set_retention(ledger: LedgerClient, tenant: str | None, days: int | None, key: Signer, trusted: Path) -> Policy:
    """Returns once the policy stands in the log. Raises KolmError, LedgerError."""
    document = Retention(tenant, days, timestamp(datetime.now(UTC)))
    envelope = sign_document(document, key).to_bytes()
    appended = VerifiedLedger(ledger, load_trusted(trusted)).append(envelope)
    return Policy(appended.index, tenant, days, document.issued_at)


def retention_state(ledger: LedgerClient, trusted: Path) -> RetentionState:
    """Raises KolmError, and LedgerError for an entry that is not signed by a trusted key."""
    keys = load_trusted(trusted)
    policies: list[tuple[int, Retention]] = []
    expiries: list[tuple[int, Expiry]] = []
    with ledger.watch(kinds=("retention", "expiry")) as entries:
        for entry in entries:
            match open_document(Envelope.from_bytes(entry.envelope), keys, entry.index):
                case Retention() as policy:
                    policies.append((entry.index, policy))
                case Expiry() as expiry:
                    expiries.append((entry.index, expiry))
    newest = sorted(in_force(policies).values(), key=lambda policy: policy[1].tenant or "")
    return RetentionState(
        tuple(Policy(index, policy.tenant, policy.days, policy.issued_at) for index, policy in newest),
        tuple({expiry.tenant: (index, expiry) for index, expiry in expiries}.values()),
    )
