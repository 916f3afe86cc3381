"""A replay of one receipt from a file, with nothing but weights."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from ledger.bundle.receipt_file import ReceiptFile
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import open_document
from ledger.documents.verdict import DEVIATION, UNREPLAYABLE
from services.auditor.audit_error import AuditError
from services.auditor.finding import Finding
from services.auditor.judge import Judge
from services.auditor.replays.engine_plan import EnginePlan
from services.cli.failures.exits import Failed
from services.cli.jobs.receipts.receipt_texts import Texts, compared_texts
from services.cli.jobs.trust import load_trusted
from services.cli.terminal.output import talk


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay.

    `index` is None where the file has no proof of a place in the log, `signed` where there were no trusted keys to
    check the receipt's signature with, `texts` where nothing could be computed.
    """

    receipt: Receipt
    index: int | None
    signed: bool | None
    finding: Finding
    texts: Texts | None

    @property
    def differs(self) -> bool:
        """Whether something is not as the receipt, or who served it, says."""
        found = self.finding
        return found.outcome == DEVIATION or found.tampered or (self.texts is not None and self.texts.same is False)


def replay_file(file: Path, plan: EnginePlan, trusted: Path, *, decode: bool, any_storage: bool) -> Replay:
    """Check the file, load the base, compute. Raises Failed, LedgerError."""
    read = ReceiptFile.from_bytes(file.read_bytes())
    keys = load_trusted(trusted) if trusted.is_dir() else None
    receipt = read.receipt()
    if keys is not None:
        open_document(read.envelope, keys)
    with talk().status("loading the base, computing"):
        finding = _judged(receipt, read, plan, decode=decode, any_storage=any_storage)
        computed = finding.outcome != UNREPLAYABLE and not any_storage
        texts = compared_texts(receipt, read.content, read.sent, read.text, plan.model) if computed else None
    index = None if read.entry is None else read.entry.index
    return Replay(receipt, index, None if keys is None else True, finding, texts)


def _judged(receipt: Receipt, read: ReceiptFile, plan: EnginePlan, *, decode: bool, any_storage: bool) -> Finding:
    from services.auditor.replays.own_engine import OwnEngine

    try:
        engine = OwnEngine.load(plan, threading.Event(), any_storage=any_storage)
        finding = Judge(engine, float(decode)).judge(receipt, read.content)
    except AuditError as error:
        raise Failed(str(error), "name the base that the receipt is about with --model") from error
    return finding if engine.base_cid == receipt.base_cid else _by_other_files(finding, receipt, engine.base_cid)


def _by_other_files(finding: Finding, receipt: Receipt, own: str) -> Finding:
    """Weights of the same values give the same bits, whatever their files; from others nothing follows."""
    if finding.outcome == DEVIATION:
        return Finding.unreplayable(f"these files, {own}, do not hold the values that the receipt was computed with")
    if finding.outcome == UNREPLAYABLE:
        return finding
    return finding.noting(f"by the same values from other files, {own}; the receipt names {receipt.base_cid}")
