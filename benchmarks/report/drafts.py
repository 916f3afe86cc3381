"""Tables of speculation: Spec-Bench by machine, method and kind of question, and heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.measurement import Measurement
from benchmarks.report.tables import Results, is_alone, link, machine_name, model_name, table, two_places

_KINDS = ("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag")


def speculation(results: Results) -> str:
    rows = []
    for record, case in cases_alone(results):
        kolm = case["contenders"]
        auto, off = kolm["kolm auto"], kolm["kolm off"]
        others = (kolm.get(f"kolm {name}", {}).get("speedup") for name in ("rest", "lookahead", "eagle3"))
        lowest = min((part["speedup"], kind) for kind, part in auto["kinds"].items() if part["speedup"])
        rows.append(
            (
                machine_name(record.machine),
                storage(record),
                f"{case['temperature']:g}",
                str(record.subject.max_tokens),
                f"{off['tokens_per_second']:.0f}",
                *map(two_places, others),
                f"**{two_places(auto['speedup'])}** ± {two_places(auto['error'])}",
                f"{two_places(lowest[0])} ({lowest[1]})",
                two_places(auto["acceptance length"]),
                link(record),
            )
        )
    return table(
        "machine | weights | T | tokens at most | `off`, tokens/s | `rest` | `lookahead` | `eagle3` | `auto` |"
        " its lowest kind | tokens a pass | ",
        sorted(rows, key=lambda row: (row[0], row[1] != "Q4_1", row[2])),
    )


def head(results: Results) -> str:
    """`eagle3` with the bundled head, by machine and temperature."""
    rows = [
        (
            machine_name(record.machine),
            f"{case['temperature']:g}",
            two_places(eagle3["acceptance length"]),
            two_places(eagle3["speedup"]),
            link(record),
        )
        for record, case in cases_alone(results)
        if storage(record) == "Q4_1" and (eagle3 := case["contenders"].get("kolm eagle3")) is not None
    ]
    return table("demo/smollm2/head, `eagle3` | T | tokens a pass | times as fast as `off` | ", sorted(rows))


def kinds(results: Results) -> str:
    rows = [
        (
            f"{machine_name(record.machine)}, {storage(record)}",
            *(two_places(case["contenders"]["kolm auto"]["kinds"].get(kind, {}).get("speedup")) for kind in _KINDS),
        )
        for record, case in cases_alone(results)
        if case["temperature"] == 0.0 and record.subject.questions != "edits.jsonl"
    ]
    return table(" | ".join(("`auto` over `off`, T = 0", *_KINDS)), rows)


def cases_alone(results: Results) -> Iterator[tuple[Measurement, Mapping[str, Any]]]:
    """Yield each case of `specbench` with one request at a time, and its record."""
    for record in results["specbench"]:
        yield from ((record, case) for case in record.figures["cases"] if is_alone(case))


def storage(record: Measurement) -> str:
    """A record's model in tables: the storage of SmolLM2, or the name of another model and whether it edited code."""
    if record.subject.model == "SmolLM2-135M-Instruct.Q4_1.gguf":
        return "bfloat16" if "bfloat16" in record.case else "Q4_1"
    return model_name(record.subject.model) + (", code edits" if record.subject.questions == "edits.jsonl" else "")
