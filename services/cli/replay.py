"""`kolm replay`: recompute a receipted request, offline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import structs
from typer import Argument, Option

from ledger.bundle.receipt_file import ReceiptFile
from ledger.documents.audit import ACCUSATIONS, DEVIATION, UNCHECKED, UNREPLAYABLE
from ledger.documents.engine_profile import EngineProfile
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import open_document
from services.cli.frame import exits, options
from services.cli.frame.exits import Failed
from services.cli.frame.options import ENGINE, EngineOptions
from services.cli.frame.output import answer, members, steps
from services.cli.frame.views import MARKS, Styled, View, counted, outcome
from services.cli.trust import load_trusted
from services.cli.verify.checks import compared_texts

if TYPE_CHECKING:
    from services.auditor.examination import EnginePlan, Finding
    from services.auditor.own_engine import OwnEngine


def replay(
    file: Annotated[Path, Argument(help="A receipt file of `kolm generate --save`.")],
    model: Annotated[
        Path | None,
        options.model("--model", "The base that the receipt names: a transformers directory, a GGUF file, or a name."),
    ] = None,
    engine: EngineOptions = ENGINE,
    any_storage: Annotated[
        bool, Option("--any-storage", help="Accept other files with the same values than the receipt names.")
    ] = False,
    decode: Annotated[
        bool, Option("--decode", help="Decode token by token instead of in one pass over the output.")
    ] = False,
    paths: options.Paths = options.PATHS,
    json: options.Json = False,
) -> None:
    """Recompute a receipted request here, and compare every token, the digest and the texts. Calls no service.

    Another engine's output is checked by one pass of kolm's arithmetic: CONSISTENT or INCONSISTENT with the weights.

    Exit code 3 if it differs, or the receipt does not commit to the content; 1 if it cannot be computed here.
    """
    if not file.is_file():
        raise exits.NotFound(
            f"there is no {file}", "`kolm generate --save` and `kolm receipts export` write such files"
        )
    if model is None:
        raise exits.UsageError("expected --model: the base that the receipt names, with the same values")

    read = ReceiptFile.from_bytes(file.read_bytes())
    receipt, keys = read.receipt(), load_trusted(paths.trusted) if paths.trusted.is_dir() else None
    if keys is not None:
        open_document(read.envelope, keys)
    with steps("hashing the base", quiet=json) as step:
        finding = _finding(engine.plan(model), receipt, read, step, any_storage=any_storage, decode=decode)
        computed = finding.outcome not in (UNREPLAYABLE, UNCHECKED) and not any_storage
        step("reading the texts")
        texts = compared_texts(receipt, read.content, read.sent, read.text, model) if computed else None
    document = members(finding, "outcome", "verification", "tokens_compared", "deviation", "reason") | {
        "reference": finding.reference and finding.reference.to_document(),
        "receipt_id": receipt.receipt_id,
        "ledger_index": None if read.entry is None else read.entry.index,  # null without a proof of a place in the log
        "signature": None if keys is None else True,  # null without keys to check it with
        "tokens": receipt.output.tokens,
        "texts": texts and texts.same,  # null without texts to compare
        "texts_compared": texts and texts.result,
    }
    answer(json, document, _replay_view)
    differs = finding.outcome in ACCUSATIONS or finding.tampered or (texts is not None and texts.same is False)
    raise typer.Exit(exits.VERIFICATION_FAILED if differs else exits.OK if finding.passed else exits.FAILED)


def _finding(
    plan: EnginePlan,
    receipt: Receipt,
    read: ReceiptFile,
    step: Callable[[str], None],
    *,
    any_storage: bool,
    decode: bool,
) -> Finding:
    """The finding on a receipt by the base in `plan`. Raises UsageError, Failed."""
    other = None if any_storage else _of_another_base(receipt, plan.model)
    if other is not None:
        return other
    step("loading and probing the base")
    loaded = _loaded(plan if receipt.engine is None else plan.for_reference(), any_storage=any_storage)
    step(f"computing {counted(receipt.output.tokens, 'token')} again")
    if receipt.engine is None:
        return _judged(loaded, receipt, read, decode=decode)
    return _referred(loaded, receipt, read, any_storage=any_storage)


def _of_another_base(receipt: Receipt, model: Path) -> Finding | None:
    """The finding on a receipt of another base, by the digest of these files, before they are loaded; None if they are
    the receipt's base. Raises UsageError.
    """
    from services.auditor.examination import NotCompared
    from services.generation.target.errors import TargetError
    from services.generation.target.identity import base_cid

    try:
        own = base_cid(model)
    except (TargetError, OSError) as error:
        raise exits.UsageError(f"--model: {error}") from error
    if own == receipt.base_cid:
        return None
    reason = f"base_cid: the receipt names {receipt.base_cid}, {model} is {own}; --model names the receipt's base"
    return NotCompared(UNREPLAYABLE if receipt.engine is None else UNCHECKED, reason)


def _loaded(plan: EnginePlan, *, any_storage: bool) -> OwnEngine:
    from services.generation.target.without_torch import hide_torch

    hide_torch()
    from services.auditor.audit_error import EngineFailed
    from services.auditor.own_engine import OwnEngine

    try:
        return OwnEngine.load(plan, threading.Event(), any_storage=any_storage)
    except EngineFailed as error:
        raise Failed(str(error), "name the receipt's base with --model") from error


def _judged(engine: OwnEngine, receipt: Receipt, read: ReceiptFile, *, decode: bool) -> Finding:
    from services.auditor.examination import Judge

    finding = Judge(engine, float(decode)).judge(receipt, read.content)
    return finding if engine.base_cid == receipt.base_cid else _by_other_files(finding, receipt, engine.base_cid)


def _referred(engine: OwnEngine, receipt: Receipt, read: ReceiptFile, *, any_storage: bool) -> Finding:
    """The finding on another engine's output. Its profile is in the log and not in the file, so the receipt's weights
    are taken for it, or, with `any_storage`, others with the same values.
    """
    from services.auditor.foreign_judge import HONEST, ForeignJudge

    name, _, version = (receipt.engine or "").partition("/")
    profile = EngineProfile(name, version, name, receipt.base_cid, not any_storage, receipt.issued_at)
    alone = structs.replace(HONEST, drift=None)
    judge = ForeignJudge(
        lambda _: profile, None, engine.refer, lambda: alone, ends=lambda: engine.ends, spelled=engine.spelled
    )
    (finding,) = judge.judge(receipt, read.content)
    return finding.noting(f"the weights are {engine.base_cid}") if any_storage else finding


def _by_other_files(finding: Finding, receipt: Receipt, own: str) -> Finding:
    """The finding by other files than the receipt names: equal values give equal bits, other values prove nothing."""
    from services.auditor.examination import NotCompared

    if finding.outcome == DEVIATION:
        return NotCompared(UNREPLAYABLE, f"the receipt was computed with other values than those in these files, {own}")
    if finding.outcome == UNREPLAYABLE:
        return finding
    return finding.noting(f"by the same values from other files, {own}; the receipt names {receipt.base_cid}")


def _replay_view(done: dict[str, Any]) -> View:
    """The outcome first, then the reasons."""
    compared = done["tokens_compared"]
    how = f" by {done['verification']}" if done["verification"] else ""
    lines: list[Any] = [(outcome(done["outcome"], compared), f": {compared} of {done['tokens']} tokens compared{how}")]
    if done["reason"]:
        lines.append(done["reason"])
    if done["texts_compared"]:
        lines.append((MARKS[done["texts"]], f" {done['texts_compared']}"))
    unsigned = "signature not checked: no trusted keys (--trusted)"
    signed = "signed by a trusted key of role receipts" if done["signature"] else unsigned
    index = done["ledger_index"]
    place = "without a proof of its place" if index is None else f"claimed to be entry {index}"
    return [*lines, Styled(f"receipt {done['receipt_id']}, {place}; {signed}", "dim")]
