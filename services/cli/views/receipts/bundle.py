"""Results of `kolm verify` on a bundle, or on a proof file."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from ledger.audit.obligation import Completeness
from ledger.bundle.limits import erased_in_words, owed_in_words
from ledger.bundle.report import BundleReport
from ledger.encoding.timestamp import timestamp
from services.cli.terminal.output import MARKS, table
from services.cli.views.receipts.promises import fulfilment_json

if TYPE_CHECKING:
    from ledger.bundle.proven_entry import ProvenEntry

_DIGITS = re.compile(r"\b([0-9a-f]{16})[0-9a-f]{48}\b")
"""A digest: lines of 80 columns have room for its beginning; --json has all of it."""

_CLAIMED = "keys and policy are the bundle's own: this shows that it agrees with itself, not who made it"


def report_json(report: BundleReport, *, as_claimed: bool) -> dict[str, Any]:
    """Everything the report says. `cosigned` are POSIX seconds by witness; `promises` are the verifier's own, each as
    `kolm receipts promised` shows it. `as_of` is the time for which owed replays were counted; enough witnesses have
    had the checkpoint since `vouched_at`.

    Counts: `unproven_profiles` and `overclaimed_speedups` of receipts, `independent` of EXACT verdicts by an engine of
    the auditor's own, `unreplayable` of receipts with that newest verdict. `erased` are those of the last whose content
    an entry had erased by then, with that entry.
    """
    checkpoint, owed, freshness = report.checkpoint, report.completeness, report.freshness
    return {
        "ok": report.ok,
        "problem": report.problem,
        "trust": "claimed" if as_claimed else "own",
        "origin": checkpoint and checkpoint.origin,
        "size": checkpoint and checkpoint.size,
        "root": checkpoint and checkpoint.root.hex(),
        "range": report.manifest and [report.manifest.start, report.manifest.end],
        "cosigned": dict(report.cosigned),
        "kinds": dict(report.kinds),
        "outcomes": dict(report.outcomes),
        "independent": report.independent,
        "unproven_profiles": report.unproven,
        "overclaimed_speedups": report.overclaims,
        "halt_epoch": report.halts.epoch,
        "open_halts": [halt.halt_index for halt in report.halts.open],
        "defied_halts": [{"index": index, "halt_index": halt} for index, halt in report.defied_halts],
        "as_of": None if owed is None else owed.as_of,
        "unreplayable": len(report.unreplayable),
        "erased": {str(index): entry for index, entry in report.unreplayable.items() if entry is not None},
        "promises": [{"state": each.state} | fulfilment_json(each.found) for each in report.promises],
        "vouched_at": freshness and freshness.vouched_at and timestamp(freshness.vouched_at),
        "checks": [asdict(check) for check in report.checks],
    }


def report_view(report: BundleReport, *, as_claimed: bool) -> RenderableType:
    """The numbered checklist and the verdict on the bundle."""
    checklist = table("", "", "check", "")
    for check in report.checks:
        detail = escape(_DIGITS.sub(r"\1…", check.detail))
        shown = f"[red]{detail}[/]" if check.passed is False else f"[dim]{detail}[/]"
        checklist.add_row(str(check.number), MARKS[check.passed], escape(check.title), shown)
    parts: list[RenderableType] = [checklist]
    if as_claimed:
        parts.append(Text(_CLAIMED, style="yellow"))
    parts += [Text(note, style="yellow") for note in _remarks(report)]
    if report.ok:
        return Group(*parts, Text(f"verified: {'; '.join(_checked(report))}", style="green"))
    return Group(*parts, Text(f"not verified: {report.problem}", style="bold red"))


def _checked(report: BundleReport) -> list[str]:
    """The scope of a green result: how much of the log, which audits as of when, how old a log."""
    said = [_scope(report), _audits(report.completeness), *([str(report.freshness)] if report.freshness else [])]
    return [*said, *([_promises(report)] if report.promises else [])]


def _scope(report: BundleReport) -> str:
    held, size = report.manifest, report.checkpoint.size if report.checkpoint else 0
    if held is None or held.start == held.end < size:
        return f"{sum(report.kinds.values())} chosen entries of a log of {size}"
    if (held.start, held.end) == (0, size):
        return f"the whole log of {size} entries"
    return f"entries {held.start} to {held.end - 1} of a log of {size}"


def _audits(owed: Completeness | None) -> str:
    if owed is None:
        return "audits were not judged, which takes the whole log"
    if not owed.policies:
        return "no audit was promised"
    return f"replays owed: {owed_in_words(owed)}"


def _promises(report: BundleReport) -> str:
    kept = sum(each.state == "KEPT" for each in report.promises)
    return f"{kept} of your {len(report.promises)} promises kept, the others not due"


def proof_json(proof: ProvenEntry) -> dict[str, Any]:
    """A proven entry as JSON."""
    checkpoint = proof.witnessed.checkpoint
    return {
        "ok": True,
        "index": proof.index,
        "kind": proof.kind,
        "origin": checkpoint.origin,
        "size": checkpoint.size,
        "cosigned": dict(proof.witnessed.cosigned),
    }


def proof_view(proof: ProvenEntry) -> RenderableType:
    """A proven entry in a sentence."""
    checkpoint, cosigned = proof.witnessed.checkpoint, ", ".join(proof.witnessed.cosigned) or "no witness"
    place = f"entry {proof.index} of {checkpoint.origin} is this {proof.kind}"
    return Text(f"{place}; checkpoint of {checkpoint.size} entries, cosigned by {cosigned}", style="green")


def _remarks(report: BundleReport) -> list[str]:
    """Findings that are no error of the bundle, but that a reader has to know."""
    remarks = []
    if report.outcomes.get("DEVIATION"):
        remarks.append(f"{report.outcomes['DEVIATION']} replays came out differently (DEVIATION)")
    if report.outcomes.get("UNREPLAYABLE"):
        found = f"{report.outcomes['UNREPLAYABLE']} receipts could not be replayed, which is no pass"
        remarks.append(found + erased_in_words(report.unreplayable))
    if believed := report.outcomes.get("EXACT", 0) - report.independent:
        remarks.append(f"{believed} of the EXACT verdicts rest on the word of the audited server, or do not say whose")
    if report.unproven:
        remarks.append(f"{report.unproven} receipts are from servers whose numerics profile had failed its probe")
    if report.overclaims:
        remarks.append(f"{report.overclaims} receipts claim a speedup that no replay can have measured")
    if report.halts.open:
        remarks.append(f"{len(report.halts.open)} halts are open")
    return remarks
