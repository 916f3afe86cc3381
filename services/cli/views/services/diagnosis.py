"""Findings of `kolm doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from services.cli.jobs.diagnosis import Diagnosis
from services.cli.terminal.output import MARKS, table

_MOST_FAILURES = 5


def diagnosis_json(found: Diagnosis) -> dict[str, Any]:
    """Times in seconds, memory in bytes."""
    profile = found.profile
    return {
        "machine": asdict(found.machine),
        "libraries": found.libraries,
        "model": {
            "path": str(found.model),
            "architecture": found.architecture,
            "size": found.size,
            "base_cid": found.base_cid,
            "tokenizer_cid": found.tokenizer_cid,
        },
        "probe": {
            "passed": profile.passed,
            "compared": profile.report.compared,
            "failures": list(profile.report.failures),
        },
        "profile_cid": profile.cid,
        "profile": profile.document,
        "passes": [{"rows": rows, "seconds": seconds} for rows, seconds in found.passes],
        "seconds": found.seconds,
    }


def diagnosis_view(found: Diagnosis) -> RenderableType:
    """Machine, model, probe, cost of a pass; the conclusion last."""
    return Group(_facts(found), "", _costs(found), _conclusion(found))


def _facts(found: Diagnosis) -> Table:
    machine, profile = found.machine, found.profile
    versions = ", ".join(f"{name} {number or '[red]missing[/]'}" for name, number in found.libraries.items())
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    rows: list[tuple[bool | None, str, str]] = [
        (True, "machine", f"{escape(machine.processor)}, {machine.cores} cores, {machine.memory / 2**30:.1f} GiB"),
        (True, "system", f"{escape(machine.system)}, Python {machine.python}, {machine.threads} threads"),
        (all(found.libraries.values()), "libraries", versions),
        (True, "model", f"{escape(str(found.model))}: {found.architecture}, {found.size}"),
        (True, "base", found.base_cid),
        (True, "loaded", f"in {found.seconds['loading']:.1f} s"),
        (profile.passed, "probe", _probe(found)),
        (profile.passed, "profile", f"{profile.cid}"),
        (True, "numerics", profile.document["arithmetic"]),
    ]
    for mark, name, value in rows:
        grid.add_row(MARKS[mark], name, value)
    return grid


def _probe(found: Diagnosis) -> str:
    report = found.profile.report
    wrong = f", [red]{len(report.failures)} differ[/]" if report.failures else ", every bit the same"
    return f"{report.compared} rows against the one-row stream{wrong}, in {found.seconds['probing']:.1f} s"


def _costs(found: Diagnosis) -> Table:
    one = found.passes[0][1]
    made = table("rows", "pass", "of one row", right=("rows", "pass", "of one row"))
    for rows, seconds in found.passes:
        made.add_row(str(rows), f"{1e3 * seconds:.2f} ms", f"{seconds / one:.2f} ×")
    return made


def _conclusion(found: Diagnosis) -> RenderableType:
    if found.profile.passed:
        return Text.from_markup("[green]speculation may be served here[/]")
    failures = list(found.profile.report.failures[:_MOST_FAILURES])
    text = "bits of a row depend on its neighbours here: the service would compute one row a pass, without speculation"
    return Group(Text(text, style="bold red"), *(Text(f"  {failure}") for failure in failures))
