"""Documents and views of the checks of `kolm verify`."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from services.cli.frame.output import members
from services.cli.frame.views import MARKS, Column, Line, Styled, View, facts, table

if TYPE_CHECKING:
    from ledger.audit.fulfilment import Fulfilment
    from ledger.bundle.proven import ProvenEntry
    from ledger.bundle.report import BundleReport


_DIGITS = re.compile(r"\b([0-9a-f]{16})[0-9a-f]{48}\b")
"""A digest, of which a line of 80 columns shows the beginning; --json has all of it."""

_KEEPS = "keeps the promise of {promised_at} of {choices} receipts for request {request_id}"


def report_document(report: BundleReport) -> dict[str, Any]:
    """The report's document. `cosigned` has POSIX seconds by witness; `promises` are the verifier's own, each as from
    `kolm receipts promised`. `as_of` is the time for which owed replays were counted; enough witnesses have had the
    checkpoint since `vouched_at`. `scope` is the extent of a green result: the part of the log, the audits and their
    time, the age of the log. `remarks` are not errors of the bundle, but a reader has to know them.

    Counts: `unproven_profiles` and `overclaimed_speedups` of receipts, `independent` of EXACT verdicts by an auditor's
    own engine, `unreplayable` of receipts with that newest verdict. `erased` maps an unreplayable receipt to the entry
    that had erased its content.
    """
    from ledger.encoding.text_forms import timestamp

    checkpoint, owed, freshness = report.checkpoint, report.completeness, report.freshness
    counted = ("cosigned", "kinds", "outcomes", "independent")
    return members(report, "ok", "problem", *counted) | {
        "origin": checkpoint and checkpoint.origin,
        "size": checkpoint and checkpoint.size,
        "root": checkpoint and checkpoint.root.hex(),
        "range": report.manifest and [report.manifest.range.start, report.manifest.range.end],
        "unproven_profiles": report.unproven,
        "overclaimed_speedups": report.overclaims,
        "halt_epoch": report.halts.epoch,
        "open_halts": [halt.halt_index for halt in report.halts.open],
        "defied_halts": [{"index": index, "halt_index": halt} for index, halt in report.defied_halts],
        "dated_ahead": list(report.dated_ahead.first),
        "as_of": None if owed is None else owed.as_of,
        "unreplayable": len(report.unreplayable),
        "erased": {str(index): entry for index, entry in report.unreplayable.items() if entry is not None},
        "promises": [{"state": each.state} | fulfilment_document(each.found) for each in report.promises],
        "vouched_at": freshness and freshness.vouched_at and timestamp(freshness.vouched_at),
        "checks": [asdict(check) for check in report.checks],
        "scope": _scope(report),
        "remarks": _remarks(report),
    }


def fulfilment_document(found: Fulfilment) -> dict[str, Any]:
    """A promise, and the entries and finish reasons by choice."""
    return {
        "entries": {str(choice): index for choice, index in sorted(found.entries.items())},
        "finish_reasons": {str(choice): ending for choice, ending in sorted(found.finish_reasons.items())},
        "missing": found.missing,
        "without_output": found.without_output,
        "document": found.promise.to_document(),
    }


def _scope(report: BundleReport) -> list[str]:
    from ledger.bundle.checks import owed_in_words

    held, size, owed = report.manifest, report.checkpoint.size if report.checkpoint else 0, report.completeness
    if held is None or held.range.start == held.range.end < size:
        scope = [f"{sum(report.kinds.values())} chosen entries of a log of {size}"]
    elif (held.range.start, held.range.end) == (0, size):
        scope = [f"the whole log of {size} entries"]
    else:
        scope = [f"entries {held.range.start} to {held.range.end - 1} of a log of {size}"]
    if owed is None:
        scope.append("audits were not judged, which needs the whole log")
    else:
        scope.append(f"replays owed: {owed_in_words(owed)}" if owed.policies else "no audit was promised")
    if report.freshness:
        scope.append(str(report.freshness))
    if report.promises:
        kept = sum(each.state == "KEPT" for each in report.promises)
        scope.append(f"{kept} of your {len(report.promises)} promises kept, the others not due")
    return scope


def _remarks(report: BundleReport) -> list[str]:
    from ledger.bundle.checks import erased_in_words
    from ledger.documents.audit import NO_ANSWERS

    outcomes, remarks = report.outcomes, []
    if outcomes.get("DEVIATION"):
        remarks.append(f"{outcomes['DEVIATION']} replays came out differently (DEVIATION)")
    if outcomes.get("INCONSISTENT"):
        remarks.append(f"{outcomes['INCONSISTENT']} outputs are not what the weights would give (INCONSISTENT)")
    if unanswered := sum(outcomes.get(name, 0) for name in NO_ANSWERS):
        found = f"{unanswered} receipts could not be replayed or checked, which does not count as passed"
        remarks.append(found + erased_in_words(report.unreplayable))
    if weaker := outcomes.get("SAME", 0) + outcomes.get("CONSISTENT", 0):
        remarks.append(f"{weaker} verdicts are on another engine's outputs: SAME and CONSISTENT are weaker than EXACT")
    if believed := outcomes.get("EXACT", 0) - report.independent:
        remarks.append(f"{believed} of the EXACT verdicts are by the audited server itself, or by an unknown engine")
    if report.unproven:
        remarks.append(f"{report.unproven} receipts are from servers whose numerics profile had failed its probe")
    if report.overclaims:
        remarks.append(f"{report.overclaims} receipts claim a speedup that no replay can have measured")
    if report.dated_ahead:
        remarks.append(str(report.dated_ahead))
    if report.halts.open:
        remarks.append(f"{len(report.halts.open)} halts are open")
    return remarks


def report_view(report: dict[str, Any]) -> View:
    """The numbered checklist and the verdict on the bundle."""

    def detail(check: dict[str, Any]) -> Line:
        return Styled(_DIGITS.sub(r"\1…", check["detail"]), "red" if check["passed"] is False else "dim")

    return [
        table(
            report["checks"],
            Column("", "number"),
            Column("", lambda check: MARKS[check["passed"]]),
            Column("check", "title"),
            Column("", detail),
        ),
        *(Styled(note, "yellow") for note in report["remarks"]),
        Styled(f"verified: {'; '.join(report['scope'])}", "green")
        if report["ok"]
        else Styled(f"not verified: {report['problem']}", "bold red"),
    ]


def proof_document(proof: ProvenEntry) -> dict[str, Any]:
    checkpoint = proof.witnessed.checkpoint
    return {
        "ok": True,
        "index": proof.index,
        "kind": proof.kind,
        "origin": checkpoint.origin,
        "size": checkpoint.size,
        "cosigned": dict(proof.witnessed.cosigned),
    }


def proof_view(proof: dict[str, Any]) -> View:
    place = f"entry {proof['index']} of {proof['origin']} is this {proof['kind']}"
    cosigned = ", ".join(proof["cosigned"]) or "no witness"
    return Styled(f"{place}; checkpoint of {proof['size']} entries, cosigned by {cosigned}", "green")


def receipt_file_view(found: dict[str, Any]) -> View:
    """The receipt's request and output, its place in the log, and the promises that it keeps."""
    receipt, over = found["receipt"], found["overclaim"]
    sampled, prompt, output = receipt["sampling"], receipt["prompt"], receipt["output"]
    summary = (
        f"signed on {receipt['issued_at']}: {prompt['tokens']} tokens of this prompt gave these "
        f"{output['tokens']} tokens, at temperature {sampled['temperature']:g} with seed {sampled['seed']}, "
        f"by {receipt['spec_decode']['method']} on {receipt['base_cid'][:22]}…"
    )
    foreign = receipt.get("engine")
    return [
        Styled(summary, "green"),
        *([] if foreign is None else [Styled(f"computed by {foreign}: nothing proves these tokens exactly", "yellow")]),
        *([] if found["texts_compared"] is None else [(MARKS[found["texts"]], f" {found['texts_compared']}")]),
        *([] if over is None else [Styled(f"the receipt {over}", "yellow")]),
        proof_view(found["proof"]),
        *(Styled(f"{_KEEPS.format(**each)}, as choice {sampled['choice']}", "green") for each in found["promises"]),
    ]


def statement_view(stated: dict[str, Any]) -> View:
    """The signer, the statement and its place."""
    receipt = stated["receipt"]
    place = f"entry {stated['index']} of {stated['origin']} is this receipt"
    lines = (
        f"stated by {stated['issuer'][:20]}…, a key that you trust",
        f"receipt {receipt['receipt_id']} of {receipt['issued_at']}, signed by its issuer",
        f"{place}, by the log's signature over {stated['size']} entries",
    )
    return [Styled(line, "green") for line in lines]


def answer_view(found: dict[str, Any]) -> View:
    """The promise, the log's answer and the conclusion."""
    promise, answered, missing = found["promise"], found["answer"], len(found["missing"])
    held = (
        f"{promise['choices'] - missing} of {promise['choices']} receipts, in a tree of {answered['tree_size']} entries"
    )
    state: Line = "not due when the log answered"
    if found["broken"]:
        state = (Styled("BROKEN", "bold red"), ": receipts were missing when they were due, by the log's own word")
    elif not missing:
        state = (Styled("KEPT", "green"), ", by the log's own word")
    return facts(
        ("promised", f"{promise['promised_at']} for {promise['tenant']}, due {promise['due']}"),
        ("request", promise["request_id"]),
        ("answered", f"{answered['answered_at']}: {held}"),
        ("state", state),
    )
