"""An auditor, put together from its plan."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
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
from services.auditor.examination import ContentReader, Examiner
from services.auditor.journal import Journal
from services.auditor.replays.engine_plan import EnginePlan
from services.auditor.replays.replayer import Replayer
from services.auditor.replays.server_replayer import PatientReplayer
from services.auditor.schedule.database import open_database
from services.auditor.schedule.sql import SqlSchedule
from services.client.generation.runtime import Runtime
from services.client.ledger.key_entries import key_entries
from services.client.ledger.ledger import LedgerClient
from services.runtime.trusted_directory import TrustedDirectory


@dataclass(frozen=True, slots=True)
class AuditorPlan:
    """Everything an auditor needs to know, as in its settings; `patience`, `draw_seconds` and `lease_seconds` are
    seconds. `engine` is the auditor's own; None asks the `generation` service to replay, and believes it. `terms` are
    announced where they are new; None goes by what the log says. `spot_checks` is the share of receipts to examine
    beyond those that are owed.
    """

    ledger: str
    key_file: Path
    trusted_directory: Path
    database: str
    patience: float
    engine: EnginePlan | None = None
    public_directory: Path | None = None
    generation: str = ""
    decode_share: float = 0.0
    terms: Terms | None = None
    spot_checks: float = 0.0
    draw_seconds: float = 0.0
    lease_seconds: float = 60.0
    max_attempts: int = 5
    condemn_unavailable: bool = True
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
        _replayer(plan, stop) as replayer,
        closing(_schedule(plan)) as schedule,
    ):
        examiner = Examiner(trust, _content_reader(ledger), replayer, plan.decode_share)
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
            condemn_unavailable=plan.condemn_unavailable,
        )


def _replayer(plan: AuditorPlan, stop: threading.Event) -> AbstractContextManager[Replayer]:
    if plan.engine is None:
        return _asking(plan, stop)
    try:
        from services.auditor.replays.own_engine import OwnEngine  # an auditor that asks needs no engine installed
    except ModuleNotFoundError as error:
        raise EngineFailed(f"an engine of its own needs {error.name}: pip install 'kolm-serve[generation]'") from error
    return nullcontext(OwnEngine.load(plan.engine, stop))


@contextmanager
def _asking(plan: AuditorPlan, stop: threading.Event) -> Iterator[Replayer]:
    with Runtime.connect(plan.generation) as runtime:
        yield PatientReplayer(runtime, plan.patience, stop)


def _schedule(plan: AuditorPlan) -> SqlSchedule:
    engine = open_database(plan.database)
    return SqlSchedule(engine, lease_seconds=plan.lease_seconds, max_attempts=plan.max_attempts)


def _content_reader(ledger: LedgerClient) -> ContentReader:
    def read(receipt_id: str) -> Content | None:
        return ledger.receipt(receipt_id, include_content=True).content

    return read
