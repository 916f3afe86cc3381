"""Tables of identity under speculation, of verdicts on other engines, and of lies that audits find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.report.tables import DASH, Results, count, machine_name, table
from services.generation.remote.dialects import DIALECTS


def identity(results: Results) -> str:
    figures = ("engine", "method", "at once", "requests", "changed")
    plain = ("plain differs from plain again", "plain differs from plain alone")
    rows = [
        [str(each[figure]) for figure in (*figures, *plain)]
        for record in results["exactness"]
        for each in record.figures
    ]
    return table(f"engine | speculation | at once | requests | changed by speculation | {' | '.join(plain)}", rows)


def identity_of_others(results: Results) -> str:
    """Answers that speculation changed, by engine and method, with 1, 8 and 16 concurrent requests: of kolm, and of
    engines that kolm can serve with.
    """
    counts: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}
    for record in results["exactness"]:
        own = ", ".join(sorted({each["method"] for each in record.figures if each["engine"] == "kolm"}))
        for each in (each for each in record.figures if each["engine"].startswith(("kolm", *DIALECTS))):
            methods = own if each["engine"] == "kolm" else each["method"]
            of = counts.setdefault((each["engine"], methods), {})
            changed, requests = of.get(each["at once"], (0, 0))
            of[each["at once"]] = changed + each["changed"], requests + each["requests"]
    rows = [
        (*key, *("{} of {}".format(*of[callers]) if callers in of else DASH for callers in (1, 8, 16)))
        for key, of in counts.items()
    ]
    return table("engine | speculation | 1 request | 8 | 16 at the same time", rows)


def verdicts(results: Results) -> str:
    """Verdicts on honest answers, and tokens until a replaced draft is found, by engine and method, on all machines."""
    cases: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in (each for record in results["verdicts"] for each in record.figures):
        cases.setdefault((each["engine"], each["method"]), []).extend(each["cases"])
    rows = []
    for named, found in cases.items():
        honest = [case for case in found if not case["share replaced"]]
        counts = (_sum(honest, name) for name in ("tokens", "SAME", "UNSTABLE", "DEVIATION"))
        faulty = [case for case in found if case["share replaced"] and _replaced(case) == "drafted"]
        rows.append((*named, *map(count, counts), *_found(faulty)))
    return table(
        "engine | speculation | honest tokens | `SAME` | `UNSTABLE` | `DEVIATION` | faulty: found | tokens each", rows
    )


def faults(results: Results) -> str:
    """Injected faults of speculation, and how many auditors found, by engine, method and machine."""
    rows = []
    for record in results["verdicts"]:
        for each in record.figures:
            for case in (case for case in each["cases"] if case["share replaced"]):
                named = (each["engine"], each["method"], machine_name(record.machine), str(case["callers"]))
                counts = (case[name] for name in ("answers", "tokens", "tokens drafted", "accepted", "UNSTABLE"))
                share = f"{case['share replaced']:.0%} of {_replaced(case)}"
                rows.append((*named, share, *map(count, counts), *_found([case])))
    return table(
        "engine | speculation | machine | callers | replaced | answers | tokens | drafted | accepted | `UNSTABLE` |"
        " faulty: found | tokens each",
        rows,
    )


def _replaced(case: dict[str, Any]) -> str:
    """Which draft tokens were replaced. Older files lack the member: they replaced accepted ones, and without `begun`
    only in answers that had begun to repeat their question.
    """
    return str(case.get("replaced of", "accepted, begun answers" if case.get("begun", True) else "accepted"))


def _sum(cases: Sequence[dict[str, Any]], name: str) -> int:
    return sum(case[name] for case in cases)


def _found(faulty: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """The number of faulty answers that were found, and the mean number of tokens read for each."""
    found, of = _sum(faulty, "faulty found"), _sum(faulty, "faulty")
    read = sum(run for case in faulty for run in case["tokens until DEVIATION"])
    return f"{found} of {of}" if faulty else DASH, count(round(read / found) if found else None)


def lies(results: Results) -> str:
    rows = [
        (
            record.figures.get("engine", "llama-server"),  # older files lack the engine: it was always this one
            name,
            str(each["outputs"]),
            f"{each['tokens']:,}",
            str(each["drawn"]["inconsistent"]),
            count(each["drawn"]["tokens until found"]),
            count(each["drawn"]["most tokens until found"]),
            str(each["together"]["inconsistent"]),
            count(each["together"]["tokens until found"]),
            machine_name(record.machine),
        )
        for record in results["lies"]
        for name, each in record.figures["cases"].items()
    ]
    return table(
        "engine | case | outputs | tokens | found by default | tokens until found | at most |"
        " without draws | tokens until found | machine",
        rows,
    )
