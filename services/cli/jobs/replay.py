"""A replay of one receipt from a file, with nothing but weights."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from ledger.bundle.receipt_file import ReceiptFile
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import open_document
from services.auditor.errors import AuditError
from services.auditor.finding import Finding
from services.auditor.judge import Judge
from services.auditor.replays.engine_plan import EnginePlan
from services.cli.exits import Failed
from services.cli.jobs.trust import load_trusted
from services.cli.output import talk


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay.

    `index` is None where the file has no proof of a place in the log, `signed` where there were no trusted keys to
    check the receipt's signature with.
    """

    receipt: Receipt
    index: int | None
    signed: bool | None
    finding: Finding


def replay_file(file: Path, plan: EnginePlan, trusted: Path, *, decode: bool) -> Replay:
    """Check the file, load the base, compute. Raises Failed, LedgerError."""
    read = ReceiptFile.from_bytes(file.read_bytes())
    keys = load_trusted(trusted) if trusted.is_dir() else None
    receipt = read.receipt()
    if keys is not None:
        open_document(read.envelope, keys)
    with talk().status("loading the base, computing"):
        finding = _judged(receipt, read, plan, decode=decode)
    return Replay(receipt, None if read.entry is None else read.entry.index, None if keys is None else True, finding)


def _judged(receipt: Receipt, read: ReceiptFile, plan: EnginePlan, *, decode: bool) -> Finding:
    from services.auditor.replays.own_engine import OwnEngine

    try:
        engine = OwnEngine.load(plan, threading.Event())
        return Judge(engine, float(decode)).judge(receipt, read.content)
    except AuditError as error:
        raise Failed(str(error), "name the base that the receipt is about with --model") from error
