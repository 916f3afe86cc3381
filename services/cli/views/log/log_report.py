"""Results of checks of a whole log: of its entries, and of its database."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from ledger.documents.signed_document import counted
from services.cli.terminal.output import MARKS, table

if TYPE_CHECKING:
    from ledger.audit.log_verification import Report
    from ledger.fsck.report import FsckReport


def report_json(report: Report) -> dict[str, Any]:
    """Everything the report says; `bad_index` is the first entry that is wrong."""
    return {
        "ok": report.ok,
        "problem": report.problem,
        "bad_index": report.bad_index,
        "size": report.size,
        "root": report.root.hex(),
        "kinds": dict(report.kinds),
        "halt_epoch": report.halts.epoch,
        "open_halts": [halt.halt_index for halt in report.halts.open],
        "defied_halts": [{"index": index, "halt_index": halt} for index, halt in report.defied_halts],
        "checks": [asdict(check) for check in report.checks],
    }


def report_view(report: Report) -> RenderableType:
    """The checklist, the log's contents, and the verdict on it."""
    checklist = table("", "check", "")
    for check in report.checks:
        detail = "" if check.passed is False else check.detail
        checklist.add_row(MARKS[check.passed], escape(check.title), f"[dim]{escape(detail)}[/]")
    kinds = counted(report.kinds)
    holds = Text.from_markup(f"{report.size} entries[dim] ({kinds or 'empty'})[/]")
    defied = [
        Text(f"entry {index} was served in a scope that entry {halt} had halted", style="bold red")
        for index, halt in report.defied_halts
    ]
    if report.ok:
        return Group(checklist, holds, *defied, Text.from_markup("[green]the ledger holds what it signed[/]"))
    return Group(checklist, holds, *defied, Text(report.problem or "", style="bold red"))


def database_json(report: FsckReport, *, guarded: bool) -> dict[str, Any]:
    """The findings; `unsigned` entries are signed by the ledger's next start."""
    return {
        "ok": report.ok,
        "depth": report.depth.name.lower(),
        "size": report.size,
        "unsigned": report.unsigned,
        "guarded": guarded,
        "findings": [asdict(finding) for finding in report.findings],
    }


def database_view(report: FsckReport) -> RenderableType:
    """One line for each finding, and the verdict."""
    looked = f"{report.size} entries, {report.depth.name.lower()} check"
    if report.unsigned:
        looked += f"; {report.unsigned} not signed yet, which the next start does"
    end = Text("nothing wrong", "green") if report.ok else Text(f"{len(report.findings)} wrong", "bold red")
    return Text("\n").join([*(Text(str(finding), "red") for finding in report.findings), Text(looked), end])
