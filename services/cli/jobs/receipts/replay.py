"""A replay of one receipt from a file, with nothing but weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.bundle.receipt_file import ReceiptFile
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import open_document
from ledger.documents.verdict import DEVIATION, UNREPLAYABLE
from services.auditor.audit_error import AuditError
from services.auditor.examination import EnginePlan, Finding, Judge
from services.cli.failures.exits import Failed
from services.cli.jobs.receipts.receipt_texts import Texts, compared_texts
from services.cli.jobs.trust import load_trusted
from services.cli.terminal.output import counted
from services.cli.terminal.progress import steps

if TYPE_CHECKING:
    from services.auditor.own_engine import OwnEngine


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


def replay_file(
    file: Path, plan: EnginePlan, trusted: Path, *, decode: bool, any_storage: bool, quiet: bool = False
) -> Replay:
    """Check the file, load the base, compute, saying on a terminal what is being done. Raises Failed, LedgerError."""
    read = ReceiptFile.from_bytes(file.read_bytes())
    keys = load_trusted(trusted) if trusted.is_dir() else None
    receipt = read.receipt()
    if keys is not None:
        open_document(read.envelope, keys)
    with steps("loading and probing the base", quiet=quiet) as step:
        engine = _loaded(plan, any_storage=any_storage)
        step(f"computing {counted(receipt.output.tokens, 'token')} again")
        finding = _judged(engine, receipt, read, decode=decode)
        computed = finding.outcome != UNREPLAYABLE and not any_storage
        step("reading the texts")
        texts = compared_texts(receipt, read.content, read.sent, read.text, plan.model) if computed else None
    index = None if read.entry is None else read.entry.index
    return Replay(receipt, index, None if keys is None else True, finding, texts)


def _loaded(plan: EnginePlan, *, any_storage: bool) -> OwnEngine:
    from services.generation.target.without_torch import spare_torch

    spare_torch()
    from services.auditor.own_engine import OwnEngine

    with _expected():
        return OwnEngine.load(plan, threading.Event(), any_storage=any_storage)


def _judged(engine: OwnEngine, receipt: Receipt, read: ReceiptFile, *, decode: bool) -> Finding:
    with _expected():
        finding = Judge(engine, float(decode)).judge(receipt, read.content)
    return finding if engine.base_cid == receipt.base_cid else _by_other_files(finding, receipt, engine.base_cid)


@contextmanager
def _expected() -> Iterator[None]:
    try:
        yield
    except AuditError as error:
        raise Failed(str(error), "name the base that the receipt is about with --model") from error


def _by_other_files(finding: Finding, receipt: Receipt, own: str) -> Finding:
    """Weights of the same values give the same bits, whatever their files; from others nothing follows."""
    if finding.outcome == DEVIATION:
        return Finding.unreplayable(f"these files, {own}, do not hold the values that the receipt was computed with")
    if finding.outcome == UNREPLAYABLE:
        return finding
    return finding.noting(f"by the same values from other files, {own}; the receipt names {receipt.base_cid}")
