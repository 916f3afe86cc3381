"""An auditor, put together from its plan."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from ledger.documents.content import Content
from ledger.keys.signer import open_signer
from services.auditor.announcement import Announcement, Terms
from services.auditor.audit_error import EngineFailed
from services.auditor.auditor import Auditor
from services.auditor.backlog import Backlog
from services.auditor.engine_plan import EnginePlan
from services.auditor.examination import ContentReader, Examiner, Replayer
from services.auditor.journal import Journal
from services.auditor.schedule.database import open_database
from services.auditor.schedule.sql import SqlSchedule
from services.client.ledger.key_entries import key_entries
from services.client.ledger.ledger import LedgerClient
from services.runtime.trusted_directory import TrustedDirectory


@dataclass(frozen=True, slots=True)
class AuditorPlan:
    """Everything an auditor needs to know, as in its settings; `draw_seconds` and `lease_seconds` are seconds. `terms`
    are announced where they are new; None goes by what the log says. `spot_checks` is the share of receipts to examine
    beyond those that are owed.
    """

    ledger: str
    key_file: Path
    trusted_directory: Path
    database: str
    engine: EnginePlan
    public_directory: Path | None = None
    decode_share: float = 0.0
    terms: Terms | None = None
    spot_checks: float = 0.0
    draw_seconds: float = 0.0
    lease_seconds: float = 60.0
    max_attempts: int = 5
    key_passphrase_file: Path | None = None


@contextmanager
def connected(plan: AuditorPlan, stop: threading.Event) -> Iterator[Auditor]:
    """An auditor with its connections; they close, and running calls end, with the block.

    Its key is made at first use; the public half goes into the plan's folder for it. Raises KeyFileError,
    ScheduleError, EngineFailed.
    """
    key = open_signer(plan.key_file, "auditor", plan.key_passphrase_file, create=True)
    if plan.public_directory is not None:
        key.publish(plan.public_directory)
    plan.trusted_directory.mkdir(parents=True, exist_ok=True)
    trust = TrustedDirectory(plan.trusted_directory, own=key, key_entries=partial(key_entries, plan.ledger)).trusted()
    with (
        LedgerClient.connect(plan.ledger) as ledger,
        closing(_schedule(plan)) as schedule,
    ):
        examiner = Examiner(trust, _content_reader(ledger), _replayer(plan.engine, stop), plan.decode_share)
        journal = Journal(ledger, key, lambda: datetime.now(UTC))
        backlog = Backlog(trust, plan.spot_checks)
        yield Auditor(
            ledger,
            backlog,
            examiner,
            journal,
            schedule,
            Announcement(backlog, journal, schedule, plan.terms, plan.draw_seconds),
            heartbeat_seconds=plan.lease_seconds / 3,
        )


def _replayer(engine: EnginePlan, stop: threading.Event) -> Replayer:
    try:
        from services.auditor.own_engine import OwnEngine
    except ModuleNotFoundError as error:
        raise EngineFailed(f"an engine of its own needs {error.name}, of the extra generation") from error
    return OwnEngine.load(engine, stop)


def _schedule(plan: AuditorPlan) -> SqlSchedule:
    engine = open_database(plan.database)
    return SqlSchedule(engine, lease_seconds=plan.lease_seconds, max_attempts=plan.max_attempts)


def _content_reader(ledger: LedgerClient) -> ContentReader:
    def read(receipt_id: str) -> Content | None:
        return ledger.receipt(receipt_id, include_content=True).content

    return read
